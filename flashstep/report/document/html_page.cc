#include "flashstep/report/document/html_page.h"

namespace flashstep::report {

// Colours are variables: the reader's system chooses light or dark, a button overrules it. Pictures
// are drawn in dark ink on white; in the dark they are inverted and their hues turned back.
const char* const kPageStyle = R"css(
:root { color-scheme: light; --page: #fff; --card: #f6f7f9; --ink: #1c1e21; --soft: #5c6370;
  --line: #d8dce2; --accent: #0b62a8; --missing: #8a5a00; --picture: none; }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) { color-scheme: dark;
  --page: #16181c; --card: #1f2228; --ink: #e6e8eb; --soft: #a0a7b3; --line: #383d46;
  --accent: #6cb6f5; --missing: #e0b060; --picture: invert(.91) hue-rotate(180deg); } }
:root[data-theme=dark] { color-scheme: dark; --page: #16181c; --card: #1f2228; --ink: #e6e8eb;
  --soft: #a0a7b3; --line: #383d46; --accent: #6cb6f5; --missing: #e0b060;
  --picture: invert(.91) hue-rotate(180deg); }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
a { color: var(--accent); }
.layout { display: grid; grid-template-columns: 15rem minmax(0, 1fr); gap: 2rem; max-width: 90rem;
  margin: 0 auto; padding: 1.5rem; }
nav { position: sticky; top: 1.5rem; align-self: start; max-height: calc(100vh - 3rem);
  overflow: auto; font-size: .9rem; }
nav ol { list-style: none; margin: .5rem 0; padding: 0; }
nav li { margin: .25rem 0; }
nav .count { color: var(--soft); font-size: .85em; }
button { font: inherit; font-size: .85rem; color: var(--ink); background: var(--card); padding: .15rem .5rem;
  border: 1px solid var(--line); border-radius: .3rem; cursor: pointer; }
button[aria-pressed=true] { border-color: var(--accent); color: var(--accent); }
h1 { line-height: 1.2; margin: 0 0 .3rem; font-size: 1.7rem; }
h2 { margin: 3rem 0 .3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.35rem; }
h3 { margin: 1.6rem 0 .4rem; font-size: 1.05rem; }
.soft, .made, .notes { color: var(--soft); font-size: .85rem; }
.made { overflow-wrap: anywhere; }
.answer { background: var(--card); border-left: 3px solid var(--accent); border-radius: .3rem;
  padding: .7rem 1rem; margin: .8rem 0; break-inside: avoid; }
.answer.missing { border-left-color: var(--missing); }
.answer h3 { margin: 0; font-size: 1rem; }
.answer .question { font-style: italic; color: var(--soft); margin: .1rem 0 .5rem; }
.answer ul { margin: .3rem 0; padding-left: 1.2rem; }
.year { font-size: .75rem; font-weight: normal; border: 1px solid var(--line); border-radius: .6rem;
  padding: 0 .4rem; margin-left: .3rem; color: var(--soft); white-space: nowrap; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { overflow-wrap: normal; padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: bottom; }
th.left, td.left { text-align: left; }
th { cursor: pointer; user-select: none; position: sticky; top: 0; background: var(--page); }
th .unit { display: block; font-weight: normal; color: var(--soft); }
th[aria-sort=ascending]::after { content: " \25B2"; font-size: .7em; }
th[aria-sort=descending]::after { content: " \25BC"; font-size: .7em; }
tbody tr:hover { background: var(--card); }
figure { margin: 1rem 0; break-inside: avoid; }
figure svg { max-width: 100%; height: auto; filter: var(--picture); }
summary { cursor: pointer; color: var(--soft); }
.trouble, .leftout, .remark { border-left: 3px solid var(--missing); padding: .2rem .8rem; margin: .5rem 0;
  font-size: .9rem; }
@media (max-width: 60rem) { .layout { display: block; padding: 1rem; } nav { position: static; max-height: none; }
  nav ol { columns: 2; } }
@media (max-width: 30rem) { nav ol { columns: 1; } body { font-size: 15px; } }
@media print { :root, :root[data-theme=dark] { color-scheme: light; --page: #fff; --card: #fff; --ink: #000;
  --soft: #444; --line: #bbb; --accent: #0b62a8; --picture: none; }
  .layout { display: block; padding: 0; } nav, button { display: none; } body { font-size: 10pt; }
  table { font-size: 7pt; } th, td { white-space: normal; padding: .1rem .3rem; } .scroll { overflow: visible; }
  th { position: static; } h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
)css";

// Sorting by a click on a head (numbers by value, what is none last), years (of an answer the
// part of that year, where it has one), light and dark,
// everything unfolded on paper.
const char* const kPageScript = R"js(
'use strict';
function sortBy(head) {
  const table = head.closest('table'), body = table.tBodies[0];
  const column = head.cellIndex, up = head.getAttribute('aria-sort') !== 'ascending';
  const rows = Array.from(body.rows);
  const value = row => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  };
  rows.sort((a, b) => {
    const x = value(a), y = value(b);
    if (x !== null && y !== null) return up ? x - y : y - x;
    if (x !== null || y !== null) return x !== null ? -1 : 1;
    const order = a.cells[column].textContent.localeCompare(b.cells[column].textContent, 'en', {numeric: true});
    return up ? order : -order;
  });
  for (const other of head.parentNode.cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  body.append(...rows);
}
for (const head of document.querySelectorAll('th')) {
  head.tabIndex = 0;
  head.addEventListener('click', () => sortBy(head));
  head.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); sortBy(head); }
  });
}
document.getElementById('theme').addEventListener('click', () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' :
      matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});
for (const button of document.querySelectorAll('button[data-year]')) {
  button.addEventListener('click', () => {
    for (const other of document.querySelectorAll('button[data-year]'))
      other.setAttribute('aria-pressed', other === button);
    const year = button.dataset.year;
    for (const answer of document.querySelectorAll('.answer')) {
      answer.hidden = year !== '' && answer.dataset.years !== '' && !answer.dataset.years.includes(year);
      const parts = Array.from(answer.querySelectorAll('.part'));
      const own = year !== '' && parts.some(part => part.dataset.year === year);
      for (const part of parts) part.hidden = own && part.dataset.year !== '' && part.dataset.year !== year;
    }
  });
}
addEventListener('beforeprint', () => {
  for (const folded of document.querySelectorAll('details')) folded.open = true;
});
)js";

}  // namespace flashstep::report
