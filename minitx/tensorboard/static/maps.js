/** Loaded attention maps: an AttentionMap is one kind of one example at one step. */

import { WEIGHTS } from "./colours.js";

const CACHE_BYTES = 96 * 2 ** 20;
const CACHED_HEADERS = 4000; // more than the steps of a series in TensorBoard, whose headers are read one after another
/** The share of its weight from which a head is marked with a pattern. */
export const NAMED_FROM = 0.5;

/** The maps of one header. Items are its layers, then its extras; each is an array of levels [heads, T, S]. */
export class AttentionMap {
  constructor(header) {
    this.header = header;
    this.rows = header.queries.length;
    this.columns = header.keys.length;
    this.counts = [...header.heads, ...header.extras.map(() => 1)];
    this.items = this.counts.map(() => null);
  }

  /** Whether an item is an extra map instead of a layer. */
  isExtra(item) {
    return item >= this.header.heads.length;
  }

  /** The item of another map that is this layer or extra map, -1 if it has none: the number of layers may differ. */
  itemOf(other, item) {
    const { heads, extras } = other.header;
    if (!this.isExtra(item)) return item < heads.length ? item : -1;
    const place = extras.indexOf(this.title(item));
    return place < 0 ? -1 : heads.length + place;
  }

  /** The levels [T, S] of one head, or null while they load or if there is no such head. */
  levels(item, head) {
    const size = this.rows * this.columns;
    return head < (this.counts[item] ?? 0)
      ? (this.items[item]?.subarray(head * size, (head + 1) * size) ?? null)
      : null;
  }

  weight(item, head, row, column) {
    return WEIGHTS[this.levels(item, head)[row * this.columns + column]];
  }

  /** All heads, layer by layer, then the extras: { item, head }. */
  heads() {
    return this.counts.flatMap((count, item) => Array.from({ length: count }, (_, head) => ({ item, head })));
  }

  /** The statistics of one head: { name, meaning, pattern, value }. */
  statistics(item, head) {
    if (this.isExtra(item)) return [];
    return this.header.statistics.map(({ values, ...rest }) => ({ ...rest, value: values[item][head] }));
  }

  value(name, item, head) {
    return this.statistics(item, head).find((statistic) => statistic.name === name)?.value ?? null;
  }

  /** The strongest pattern of a head, or null. */
  mark(item, head) {
    const shown = this.statistics(item, head).filter(({ pattern, value }) => pattern && value >= NAMED_FROM);
    return shown.reduce((best, one) => (best && best.value >= one.value ? best : one), null);
  }

  /** The displayed name, counted from one. */
  title(item, head) {
    if (this.isExtra(item)) return this.header.extras[item - this.header.heads.length];
    return `layer ${item + 1}, head ${head + 1}`;
  }

  /** Whether a second one can be subtracted from this one. */
  fits(other) {
    return this.rows === other.rows && this.columns === other.columns;
  }
}

/** Loads maps and caches the most recently used ones. */
export class Store {
  constructor(source) {
    this.source = source;
    this.cached = new Map();
    this.headers = new Map();
    this.began = {}; // by run: the time of its first maps, which differs from that of a deleted run of this name
  }

  key(run, tag, step) {
    return JSON.stringify([run, this.began[run], tag, step]);
  }

  /** The header of one AttentionMap, requested once, however many wait for it. */
  async header(run, tag, step) {
    const key = this.key(run, tag, step);
    if (!this.headers.has(key)) {
      const header = this.source.header(run, tag, step);
      this.headers.set(key, header);
      if (this.headers.size > CACHED_HEADERS) this.headers.delete(this.headers.keys().next().value);
      header.catch(() => this.headers.delete(key)); // it may exist at the next request
    }
    return this.headers.get(key);
  }

  /** One AttentionMap with all its items. */
  async load(run, tag, step, signal) {
    const key = this.key(run, tag, step);
    const found = this.cached.get(key);
    if (found) {
      this.cached.delete(key); // moves it to the end of the order of eviction
      this.cached.set(key, found);
      return found;
    }
    const map = new AttentionMap(await this.header(run, tag, step));
    await Promise.all(
      map.counts.map(async (count, item) => {
        const levels = await this.source.map(run, tag, step, item, signal);
        if (levels.length !== count * map.rows * map.columns) throw new Error("this attention map is damaged");
        map.items[item] = levels;
      }),
    );
    this.cached.set(key, map);
    this.evict();
    return map;
  }

  evict() {
    const size = (map) => map.items.reduce((sum, levels) => sum + levels.length, 0);
    let bytes = [...this.cached.values()].reduce((sum, map) => sum + size(map), 0);
    for (const [key, map] of this.cached) {
      if (bytes <= CACHE_BYTES || this.cached.size <= 2) return;
      this.cached.delete(key);
      bytes -= size(map);
    }
  }
}
