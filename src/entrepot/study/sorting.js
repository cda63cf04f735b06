
// Headings that sort the table: buttons, so that keys and screen readers have them as well. Once for
// the lowest first, again for the highest, and again for the order that the page came in.
for (const table of document.querySelectorAll("table.trials")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const asItCame = [...body.rows];
  const said = table.closest(".card").querySelector(".sorted");
  const words = { ascending: "lowest first", descending: "highest first" };

  // What a cell is sorted by; null for one that says nothing, and NaN, which come last either way.
  const value = (row, column, isWord) => {
    const cell = row.cells[column];
    const text = cell.dataset.v || cell.textContent;
    if (isWord) return text.toLowerCase() || null;
    const number = Number(text.replace(/,/g, "").replace("inf", "Infinity"));
    return text === "" || Number.isNaN(number) ? null : number;
  };

  const sorted = (column, order) => {
    if (!order) return asItCame;
    const isWord = heads[column].classList.contains("word");
    const sign = order === "ascending" ? 1 : -1;
    const rows = asItCame.map((row) => [value(row, column, isWord), row]);
    const given = rows.filter((each) => each[0] !== null); // a sort keeps the order of equals
    given.sort(([a], [b]) => sign * (isWord ? a.localeCompare(b, "en") : a < b ? -1 : +(a > b)));
    return [...given, ...rows.filter((each) => each[0] === null)].map((each) => each[1]);
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    const name = head.textContent;
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const order = before === "ascending" ? "descending" : before ? "" : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (order) head.setAttribute("aria-sort", order);
      body.append(...sorted(column, order));
      said.textContent = order ? "sorted by " + name + ", " + words[order] : "in the order it came in";
    });
  });
}
