"use strict";
// Before the first paint; a file: page may have no storage.
try {
  const kept = localStorage.getItem("equipoise-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* the system's theme, then */ }
