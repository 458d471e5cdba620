"use strict";

/** An element with attributes and children; strings become text, never markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function themeButton() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const next = { "": "dark", dark: "light", light: "" };
  const say = () => {
    button.textContent = `Theme: ${root.dataset.theme || "system"}`;
  };
  button.addEventListener("click", () => {
    const theme = next[root.dataset.theme || ""];
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    try {
      if (theme) localStorage.setItem("equipoise-theme", theme);
      else localStorage.removeItem("equipoise-theme");
    } catch { /* not remembered */ }
    say();
  });
  say();
  button.hidden = false;
}

function copyButtons() {
  const status = document.getElementById("copied");
  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.parentElement.querySelector("code");
    const name = button.parentElement.querySelector("p").textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        status.textContent = `Copied: ${name}`;
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        status.textContent = `Selected, copy it with the keyboard: ${name}`;
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

/** What is folded on screen is printed open, and folded again after. */
function unfoldForPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.fold:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
}

themeButton();
copyButtons();
unfoldForPrint();
