"use strict";

const PAGE_ROWS = 50, PRINTED_FLIPS = 20;

/** Whether a value read from a file is a flip as this page's own data holds it. */
function isFlip(value) {
  const text = (x) => x === null || x === undefined || (Array.isArray(x) && x.length === 4
    && Number.isInteger(x[0]) && typeof x[1] === "string" && typeof x[2] === "string" && Number.isInteger(x[3]));
  const side = (x) => x !== null && typeof x === "object" && typeof x.finish === "string" && x.read !== undefined
    && [x.read, x.text, x.thinking, x.calls].every(text);
  const trace = (x) => x === undefined || (Number.isInteger(x.start) && Number.isInteger(x.at)
    && [x.baseline, x.candidate].every((list) => Array.isArray(list) && list.every((p) => Array.isArray(p) && p.length === 2 && p.every((x) => typeof x === "string"))));
  return value !== null && typeof value === "object"
    && [value.model, value.task, value.id].every((x) => typeof x === "string") && typeof value.lost === "boolean"
    && text(value.prompt) && text(value.target) && side(value.baseline) && side(value.candidate)
    && (value.differs === null || (typeof value.differs === "object" && typeof value.differs.part === "string" && trace(value.differs.trace)));
}

function explorer() {
  const at = (id) => document.getElementById(id);
  const flips = JSON.parse(at("flip-data").textContent);
  const fields = { text: at("f-text"), model: at("f-model"), task: at("f-task"), way: at("f-way"), with: at("f-with") };
  const list = at("f-list"), more = at("f-more"), status = at("f-status");
  let found = [], shown = 0;

  const has = {
    truncated: (f) => f.baseline.truncated || f.candidate.truncated,
    calls: (f) => f.baseline.calls || f.candidate.calls,
    thinking: (f) => f.baseline.thinking || f.candidate.thinking,
    trace: (f) => f.differs && f.differs.trace,
  };
  const searched = new WeakMap();
  const words = (f) => {
    if (!searched.has(f)) {
      const texts = [f.prompt, f.target, ...[f.baseline, f.candidate].flatMap((s) => [s.read, s.text, s.thinking, s.calls])];
      searched.set(f, [f.id, f.task, ...texts.map((t) => plain(t ?? null))].join("\n").toLowerCase());
    }
    return searched.get(f);
  };

  function options() {
    for (const [field, key] of [[fields.model, "model"], [fields.task, "task"]]) {
      const kept = field.value;
      const names = [...new Set(flips.map((f) => f[key]))];
      field.replaceChildren(make("option", { value: "" }, "all"), ...names.map((name) => make("option", { value: name }, name)));
      field.value = names.includes(kept) ? kept : "";
    }
    at("f-model-field").hidden = new Set(flips.map((f) => f.model)).size < 2;
    for (const option of fields.with.options) {
      option.hidden = option.value !== "" && !flips.some((f) => has[option.value](f));
    }
  }

  function filter() {
    const text = fields.text.value.trim().toLowerCase();
    found = flips.filter((f) => (!fields.model.value || f.model === fields.model.value)
      && (!fields.task.value || f.task === fields.task.value)
      && (!fields.way.value || f.lost === (fields.way.value === "lost"))
      && (!fields.with.value || has[fields.with.value](f))
      && (!text || words(f).includes(text)));
    list.replaceChildren();
    shown = 0;
    extend();
  }

  function extend() {
    const from = shown;
    shown = Math.min(shown + PAGE_ROWS, found.length);
    list.append(...found.slice(from, shown).map(flipRow));
    more.hidden = shown === found.length;
    more.textContent = `Show ${number(Math.min(PAGE_ROWS, found.length - shown))} more`;
    const lost = found.filter((f) => f.lost).length;
    status.textContent = `${number(found.length)} of ${number(flips.length)} match: ${number(lost)} lost, `
      + `${number(found.length - lost)} gained; ${number(shown)} listed`;
    return from;
  }

  let wait = 0;
  fields.text.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(filter, 150);
  });
  for (const field of [fields.model, fields.task, fields.way, fields.with]) field.addEventListener("change", filter);
  more.addEventListener("click", () => {
    const first = extend();
    list.children[first].querySelector("summary").focus();
  });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...list.querySelectorAll("details.flip:not([open])")].slice(0, PRINTED_FLIPS);
    for (const details of opened) {
      details.dispatchEvent(new Event("fill"));
      details.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });

  const companion = at("companion");
  if (companion) {
    companion.parentElement.hidden = false;
    companion.addEventListener("change", async () => {
      if (!companion.files.length) return;
      const name = companion.files[0].name;
      try {
        const lines = (await companion.files[0].text()).split("\n").filter((line) => line !== "");
        const added = lines.map((line) => JSON.parse(line));
        if (!added.every(isFlip)) throw new TypeError("a line is not a flip of this report's form");
        flips.push(...added);
        companion.disabled = true;
        options();
        filter();
      } catch (error) {
        status.textContent = `${name} was not read (${error.message}); take the file that was written with this page`;
      }
    });
  }

  options();
  filter();
  at("explorer").hidden = false;
}

if (document.getElementById("flip-data") && document.getElementById("explorer")) explorer();
