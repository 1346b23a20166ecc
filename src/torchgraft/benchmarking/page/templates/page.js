"use strict";
// Sorting, filtering, and what a dot says when it is pointed at. Without script the page still shows everything.
const table = document.getElementById("table");
const rows = [...table.tBodies[0].rows];

function sortBy(heading) {
  const column = heading.cellIndex;
  const numeric = heading.firstChild.dataset.order === "number";
  // Figures begin with the largest, names with the first.
  const first = numeric ? "descending" : "ascending";
  const second = numeric ? "ascending" : "descending";
  const order = heading.getAttribute("aria-sort") === first ? second : first;
  for (const other of heading.parentNode.cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => (numeric ? row.cells[column].dataset.value : row.cells[column].textContent.trim());
  rows.sort((one, other) => {
    const a = value(one);
    const b = value(other);
    // What has no figure stays at the end, whichever the order.
    if (numeric && (a === "" || b === "")) return (a === "") - (b === "");
    return sign * (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  });
  table.tBodies[0].append(...rows);
}

for (const heading of table.tHead.rows[0].cells) {
  heading.firstChild.addEventListener("click", () => sortBy(heading));
}

const find = document.getElementById("find");
const losses = document.getElementById("losses");
const choices = [...document.querySelectorAll("select[data-column]")];

function filter() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits =
      words.every((word) => text.includes(word)) &&
      choices.every((choice) => !choice.value || row.dataset[choice.dataset.column] === choice.value) &&
      (!losses.checked || row.dataset.slower === "1");
    row.hidden = !fits;
    if (fits) shown += 1;
  }
  document.getElementById("count").textContent = `${shown} of ${rows.length} rows`;
}

for (const control of [find, losses, ...choices]) control.addEventListener("input", filter);
document.getElementById("wide").addEventListener("input", (event) => {
  table.classList.toggle("wide-table", event.target.checked);
});
document.getElementById("all-losses")?.addEventListener("click", () => {
  losses.checked = true;
  filter();
});
filter();

const tip = document.getElementById("tip");
for (const title of document.querySelectorAll(".dot title")) {
  // Or the browser would say it too.
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}

function show(event) {
  const dot = event.target.closest("[data-tip]");
  tip.hidden = !dot;
  if (!dot) return;
  tip.textContent = dot.dataset.tip;
  const at = dot.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.x + at.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  const above = at.y - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 8 ? at.bottom + 8 : above}px`;
}

document.addEventListener("pointerover", show);
document.addEventListener("click", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
