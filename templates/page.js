
// Tables with a header are sorted by a click, long ones are filtered by words. Without a script, the page is complete.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const number = (cell) => parseFloat(cell.replaceAll(",", ""));
  [...(table.tHead?.rows[0].cells ?? [])].forEach((cell, column) => {
    const button = document.createElement("button");
    button.textContent = cell.textContent;
    cell.replaceChildren(button);
    button.onclick = () => {
      const up = cell.ariaSort !== "ascending";
      for (const other of cell.parentNode.cells) other.ariaSort = null;
      cell.ariaSort = up ? "ascending" : "descending";
      const text = (row) => row.cells[column]?.textContent ?? "";
      const compare = (a, b) => {
        const [left, right] = [number(text(a)), number(text(b))];
        return Number.isNaN(left) || Number.isNaN(right) ? text(a).localeCompare(text(b)) : left - right;
      };
      body.append(...rows.slice().sort((a, b) => (up ? compare(a, b) : compare(b, a))));
    };
  });
  if (rows.length > 10) {
    const input = document.createElement("input");
    input.placeholder = `filter ${rows.length} rows`;
    input.ariaLabel = input.placeholder;
    input.oninput = () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    };
    table.parentNode.before(input);
  }
}
