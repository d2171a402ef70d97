// Sorting by a click on a head (numbers by value, what is none last), years (of an answer the part of that year, where
// it has one), light and dark.
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
      answer.hidden = year !== '' && !!answer.dataset.years && !answer.dataset.years.includes(year);
      const parts = Array.from(answer.querySelectorAll('.part'));
      const own = year !== '' && parts.some(part => part.dataset.years === year);
      for (const part of parts) part.hidden = own && !!part.dataset.years && part.dataset.years !== year;
    }
  });
}
// A link to what is folded away opens it.
const openTarget = () => {
  let place = location.hash && document.getElementById(location.hash.slice(1));
  for (; place; place = place.parentElement) if (place.tagName === 'DETAILS') place.open = true;
};
addEventListener('hashchange', openTarget);
openTarget();
