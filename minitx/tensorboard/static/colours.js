/** From levels to colours. A level is the stored 255 x sqrt(weight); a difference is a signed level. */

/** Dark to bright, monotone in lightness; the ramp of minitx/interpret/images.py. */
export const RAMP = [
  [0, 0, 4], [40, 17, 89], [114, 31, 129], [183, 55, 121], [241, 96, 93], [254, 176, 120], [252, 253, 191],
];
/** From the colour of the page to a strong one. */
const LESS = {
  dark: [[24, 25, 29], [33, 84, 148], [120, 190, 255]],
  light: [[250, 250, 248], [128, 178, 222], [22, 82, 150]],
};
const MORE = {
  dark: [[24, 25, 29], [165, 80, 12], [255, 178, 90]],
  light: [[250, 250, 248], [240, 172, 100], [168, 74, 4]],
};

/** The weight of each level. */
export const WEIGHTS = Float32Array.from({ length: 256 }, (_, level) => (level / 255) ** 2);

/** A colour between anchors, at a share of the way in 0..1. */
export function between(anchors, share) {
  const place = Math.min(Math.max(share, 0), 1) * (anchors.length - 1);
  const left = Math.min(Math.floor(place), anchors.length - 2);
  return anchors[left].map((part, channel) => part + (anchors[left + 1][channel] - part) * (place - left));
}

function packed([red, green, blue]) {
  return (0xff000000 | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;
}

function share(level, scale) {
  return scale === "linear" ? (level / 255) ** 2 : level / 255;
}

/**
 * A table of 511 colours for signed levels -255..255, as ImageData's 32-bit pixels.
 *
 * Weights use the ramp in its upper half; differences use two ramps, both with the colour of the page at zero.
 */
export function palette(scale, difference, theme) {
  return Uint32Array.from({ length: 511 }, (_, index) => {
    const level = index - 255;
    const anchors = difference ? (level < 0 ? LESS : MORE)[theme] : RAMP;
    return packed(between(anchors, share(Math.abs(level), scale)));
  });
}

/** The colour of a signed weight, for lines and bars, as CSS: the far end of its ramp. */
export function lineColour(weight, difference, theme) {
  const plain = theme === "dark" ? [241, 150, 140] : RAMP[2];
  const [red, green, blue] = difference ? (weight < 0 ? LESS : MORE)[theme].at(-1) : plain;
  return `rgb(${red} ${green} ${blue})`;
}

/** The two greys of padding. */
export function greys(theme) {
  return theme === "dark"
    ? [packed([58, 60, 66]), packed([74, 76, 82])]
    : [packed([206, 207, 210]), packed([224, 225, 228])];
}

let differences = null;

/** The signed level of the difference of two weights, for each pair of levels: [256 x 256], first minus second. */
export function differenceTable() {
  differences ??= Int16Array.from({ length: 65536 }, (_, pair) => {
    const difference = WEIGHTS[pair >> 8] - WEIGHTS[pair & 255];
    return Math.sign(difference) * Math.round(Math.sqrt(Math.abs(difference)) * 255);
  });
  return differences;
}
