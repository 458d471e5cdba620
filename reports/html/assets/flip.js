"use strict";

const FOLD_CHARS = 1500, KEPT_CHARS = 300; // kept before the first difference in a folded text

const plain = (text) => (text === null ? "" : text[1] + text[2]);
const number = (n) => n.toLocaleString("en-US");

/** One line of the list; its body is made when it is opened. */
function flipRow(flip) {
  const way = flip.lost ? "lost" : "gained";
  const tags = [
    ["truncated", flip.baseline.truncated || flip.candidate.truncated],
    ["tool call", flip.baseline.calls || flip.candidate.calls],
  ].filter(([, has]) => has).map(([name]) => make("span", { class: "tag" }, name));
  const short = (side) => make("code", {}, side.read === null ? "(no answer)" : plain(side.read).slice(0, 120) || "(empty)");
  const details = make("details", { class: `flip ${way}` },
    make("summary", {},
      make("span", { class: "way" }, way),
      make("span", { class: "what" }, make("bdi", {}, flip.id), ...tags, make("small", {}, `${flip.task}, ${flip.model}`)),
      make("span", { class: "read" }, short(flip.baseline), " → ", short(flip.candidate))));
  const fill = () => {
    if (details.childElementCount === 1) details.append(flipBody(flip));
  };
  details.addEventListener("toggle", () => { if (details.open) fill(); });
  details.addEventListener("fill", fill); // before printing, which does not wait for a toggle
  return make("li", {}, details);
}

function flipBody(flip) {
  const shown = { baseline: flip.baseline.text ?? null, candidate: flip.candidate.text ?? null };
  const both = shown.baseline !== null && shown.candidate !== null;
  const [ours, theirs] = both ? wordDiff(plain(shown.baseline), plain(shown.candidate)) : [null, null];
  return make("div", { class: "flip-body" },
    part("Prompt", flip.prompt, null, "h3"),
    part("Target", flip.target, null, "h3"),
    difference(flip),
    make("div", { class: "sides" },
      sideOf("Baseline", "baseline", flip.baseline, ours),
      sideOf("Candidate", "candidate", flip.candidate, theirs)),
    flip.differs && flip.differs.trace ? logprobTrace(flip.differs.trace) : null);
}

function difference(flip) {
  if (flip.differs === null) return null;
  const { part: where, char, token, turn } = flip.differs;
  const turns = Math.max(flip.baseline.turns || 1, flip.candidate.turns || 1);
  const inTurn = turns > 1 ? ` of turn ${turn} of ${turns}` : "";
  const atToken = token === null ? "" : `, token ${token} of the reply`;
  return make("p", { class: "note" }, `The replies first differ in the ${where}${inTurn}, at character ${char}${atToken} (counted from 0).`);
}

function sideOf(title, name, side, runs) {
  const meta = [
    side.score === undefined ? null : `score ${side.score}`,
    side.finish ? `finished: ${side.finish}` : null,
    side.truncated ? "truncated" : null,
    side.tokens === undefined || side.tokens === "n/a" ? null : `${side.tokens} tokens`,
    side.turns > 1 ? `reply ${side.turns} of ${side.turns}` : null,
  ].filter((said) => said !== null).join(" · ");
  const same = side.text && side.read && plain(side.text) === plain(side.read);
  return make("div", { class: `side ${name}` },
    make("h3", {}, title),
    make("p", { class: "meta" }, meta),
    same ? null : part("Read as the answer", side.read),
    side.text === undefined ? null : part("Reply", side.text, runs),
    side.calls ? part("Tool calls", side.calls) : null,
    side.thinking ? make("details", {}, make("summary", {}, `Thinking (${number(size(side.thinking))} characters)`), part("", side.thinking)) : null);
}

const size = (text) => text[0] + [...plain(text)].length + text[3];

/** A text with its cuts said, its changed words marked and the first difference shown; folded if long. */
function part(title, text, runs = null, level = "h4") {
  const box = make("div", {}, title ? make(level, {}, title) : null);
  if (text === null) {
    box.append(make("p", { class: "note" }, "(no answer)"));
    return box;
  }
  const [before, same, rest, after] = text;
  const shown = make("div", { class: "text", dir: "auto" });
  if (before) shown.append(make("span", { class: "cut" }, `[${number(before)} characters before] …`));
  const pieces = runs || [[same + rest, false]];
  const folded = same.length + rest.length > FOLD_CHARS;
  const skip = folded && rest && !pieces[0][1] ? Math.min(same.length, pieces[0][0].length) - KEPT_CHARS : 0;
  let at = 0;
  if (skip > KEPT_CHARS) {
    at = skip;
    shown.append(make("span", { class: "lead" }, pieces[0][0].slice(0, skip)),
      make("span", { class: "cut skipped" }, `[${number(skip)} characters, the same in both] …`));
    pieces[0] = [pieces[0][0].slice(skip), false];
  }
  const mark = () => make("span", { class: "here", title: "first difference" });
  for (const [run, changed] of pieces) {
    const cut = rest && same.length >= at && same.length < at + run.length ? same.length - at : -1;
    const parts = cut < 0 ? [run] : [run.slice(0, cut), mark(), run.slice(cut)];
    shown.append(...(changed ? [make("mark", {}, ...parts)] : parts));
    at += run.length;
  }
  if (same + rest === "") shown.append(make("span", { class: "cut" }, "(empty)"));
  if (after) shown.append(make("span", { class: "cut" }, `… [${number(after)} more characters]`));
  box.append(shown);
  if (folded) box.append(unfold(shown, at));
  return box;
}

function unfold(shown, length) {
  shown.classList.add("clipped");
  const button = make("button", { type: "button", class: "more quiet", "aria-expanded": "false" }, `Show all ${number(length)} characters`);
  button.addEventListener("click", () => {
    const folded = shown.classList.toggle("clipped");
    button.setAttribute("aria-expanded", String(!folded));
    button.textContent = folded ? `Show all ${number(length)} characters` : "Show less";
  });
  return button;
}
