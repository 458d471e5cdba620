"use strict";

const MAX_CHANGED_WORDS = 2500; // the table of the comparison grows with the square

const wordsOf = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

/**
 * Compare two texts word by word.
 * Returns for each side runs of [text, changed]; beyond MAX_CHANGED_WORDS all in the middle is changed.
 */
function wordDiff(one, other) {
  const a = wordsOf(one), b = wordsOf(other);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const keep = common(...middle);
  return [[a, 0], [b, 1]].map(([words, side]) => {
    const runs = [];
    const put = (text, changed) => {
      const last = runs[runs.length - 1];
      if (last && last[1] === changed) last[0] += text;
      else if (text) runs.push([text, changed]);
    };
    put(words.slice(0, head).join(""), false);
    middle[side].forEach((word, i) => put(word, !keep[side].has(i)));
    put(words.slice(words.length - tail).join(""), false);
    return runs;
  });
}

/** The places in both lists of a longest common subsequence. */
function common(a, b) {
  const kept = [new Set(), new Set()];
  if (a.length > MAX_CHANGED_WORDS || b.length > MAX_CHANGED_WORDS) return kept;
  const width = b.length + 1;
  const best = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i * width + j] = a[i] === b[j]
        ? best[(i + 1) * width + j + 1] + 1
        : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      kept[0].add(i++);
      kept[1].add(j++);
    } else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
    else j++;
  }
  return kept;
}
