/** The distribution of a step before and after temperature and filters, in the order of minitx's sampler. */

/** Probabilities of a softmax of [logit, number of tokens], each the sum over its tokens. */
function softmax(entries) {
  const highest = Math.max(...entries.map(([logit]) => logit));
  const sizes = entries.map(([logit, count]) => count * Math.exp(logit - highest));
  const sum = sizes.reduce((total, size) => total + size, 0);
  return sizes.map((size) => size / sum);
}

/**
 * Probabilities of the candidates of a step, likeliest first, of the rest of the vocabulary, and the entropy in bits.
 *
 * @param step `ids`, `logits`, and `rest`: bins of [logit, number of tokens]
 * @param settings temperature, top_k (0: all), top_p, min_p
 */
export function distribution(step, { temperature = 1, top_k = 0, top_p = 1, min_p = 0 } = {}) {
  let entries = [...step.logits.map((logit) => [logit, 1]), ...step.rest].map(([logit, count]) => [
    logit / temperature,
    count,
  ]);
  const drop = (outside) => (entries = entries.map((entry, place) => (outside(place) ? [-Infinity, entry[1]] : entry)));
  if (top_k > 0 && top_k < step.logits.length) drop((place) => entries[place][0] < entries[top_k - 1][0]);
  if (top_p < 1) {
    let sum = 0;
    const before = softmax(entries).map((share) => (sum += share) - share);
    drop((place) => before[place] >= top_p);
  }
  if (min_p > 0) {
    const shares = softmax(entries).map((share, place) => share / entries[place][1]);
    const least = min_p * Math.max(...shares);
    drop((place) => shares[place] < least);
  }
  const shares = softmax(entries);
  const known = step.ids.length;
  return {
    shares: shares.slice(0, known),
    rest: shares.slice(known).reduce((sum, share) => sum + share, 0),
    kept: entries.reduce((sum, [logit, count]) => sum + (logit > -Infinity ? count : 0), 0),
    total: entries.reduce((sum, [, count]) => sum + count, 0),
    entropy: shares.reduce((sum, p, place) => (p > 0 ? sum - p * Math.log2(p / entries[place][1]) : sum), 0),
  };
}
