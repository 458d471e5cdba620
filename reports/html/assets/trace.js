"use strict";

const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** The logprobs of both replies' tokens around the first that differs: a plot, and the numbers. */
function logprobTrace(trace) {
  const width = matchMedia("(max-width: 40rem)").matches ? 320 : 640;
  const height = 130, left = 44, right = width - 10, top = 14, bottom = 108;
  const length = Math.max(trace.baseline.length, trace.candidate.length, 2);
  const least = Math.min(-0.1, ...[...trace.baseline, ...trace.candidate].map(([said]) => Number(said)));
  const x = (i) => left + (i / (length - 1)) * (right - left);
  const y = (logprob) => top + (logprob / least) * (bottom - top);
  const title = `Logprobs of tokens ${trace.start} to ${trace.start + length - 1} in both arms; the numbers follow`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(
    draw("line", { x1: x(trace.at), x2: x(trace.at), y1: top - 8, y2: bottom, class: "s-edge", "stroke-dasharray": "4 3" }),
    draw("line", { x1: left, x2: right, y1: top, y2: top, class: "s-rule" }),
    draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "s-rule" }),
    draw("text", { x: left - 8, y: top + 4, "text-anchor": "end", "font-size": 11, class: "f-muted" }, "0"),
    draw("text", { x: left - 8, y: bottom + 4, "text-anchor": "end", "font-size": 11, class: "f-muted" }, least.toPrecision(2)),
    draw("text", { x: x(trace.at), y: height - 6, "text-anchor": "middle", "font-size": 11, class: "f-muted" }, `token ${trace.start + trace.at}`),
  );
  for (const [side, role, dash] of [["baseline", "plain", "none"], ["candidate", "warn", "5 3"]]) {
    const points = trace[side].map(([said], i) => `${x(i).toFixed(1)},${y(Number(said)).toFixed(1)}`);
    svg.append(draw("polyline", { points: points.join(" "), class: `s-${role}`, "stroke-width": 2, "stroke-dasharray": dash }));
  }
  return make("section", { class: "trace" },
    make("h3", {}, "Logprobs around the first token that differs (nats)"),
    svg,
    make("p", { class: "key" }, make("span", {}, "solid: baseline"), make("span", {}, "dashed: candidate")),
    make("details", {}, make("summary", {}, "Numbers"), numbers(trace, length)));
}

function numbers(trace, length) {
  const cells = (side, i) => {
    const [said, token] = trace[side][i] || ["", ""];
    return [make("td", { class: "code" }, make("code", {}, token)), make("td", { class: "number" }, said)];
  };
  const rows = Array.from({ length }, (_, i) => make("tr", {},
    make("th", { scope: "row" }, `${trace.start + i}${i === trace.at ? ", first that differs" : ""}`),
    ...cells("baseline", i), ...cells("candidate", i)));
  const heads = [["token", "code"], ["baseline", "code"], ["logprob", "number"], ["candidate", "code"], ["logprob", "number"]];
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Logprobs in numbers" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map(([name, kind]) => make("th", { scope: "col", class: kind }, name)))),
      make("tbody", {}, ...rows)));
}
