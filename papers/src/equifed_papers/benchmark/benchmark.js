"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const picks = ["score", "data-set", "partition", "family"].map(byId);
  const number = (value) => value === null || value === undefined ? "" : Math.abs(value) >= 1000
    ? Math.round(value).toLocaleString("en") : value.toFixed(3);
  const cell = (tag, text, title = "", kind = "") => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (title) made.title = title;
    if (kind) made.className = kind;
    if (tag === "th") made.scope = "col";
    return made;
  };
  const mean = (values) => values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  let sorted = null; // a column that was clicked

  const draw = () => {
    const [score, set, partition, family] = picks.map((pick) => pick.value);
    const rows = data.rows.filter((row) => row[4] === score && row[5] !== null && (!set || row[0] === set)
      && (!partition || row[1] === partition) && (!family || row[3] === family));
    const single = set && partition;
    const columns = [...new Set(rows.map((row) => single ? row[1] : set ? row[1] : row[0]))].sort();
    const methods = new Map();
    for (const row of rows) {
      if (!methods.has(row[2])) methods.set(row[2], { family: row[3], cells: new Map() });
      const cells = methods.get(row[2]).cells, key = set ? row[1] : row[0];
      if (!cells.has(key)) cells.set(key, []);
      cells.get(key).push(row);
    }
    const most = new Map(columns.map((key) => [key, Math.max(...[...methods.values()].map(({ cells }) => cells.get(key)?.length ?? 0))]));
    const ranked = columns.filter((key) => !set && data.ranked.includes(key));
    const counted = ranked.length ? ranked : columns; // of the mean: not every method can run on the others
    const higher = data.scores[score].higher;
    const lines = [...methods].map(([name, { family, cells }]) => {
      const means = columns.map((key) => cells.has(key) ? mean(cells.get(key).map((row) => row[5])) : null);
      const there = counted.filter((key) => cells.get(key)?.length === most.get(key)).length;
      const all = there === counted.length ? mean(counted.map((key) => means[columns.indexOf(key)])) : null;
      return { name, family, cells, means, all, there };
    });
    const key = (line) => sorted === null || sorted >= columns.length ? line.all : line.means[sorted];
    // whoever lacks a federation comes after those that have all: the means are not of the same things
    lines.sort((a, b) => (sorted === null ? b.there - a.there : 0) || (key(a) === null) - (key(b) === null)
      || (higher ? key(b) - key(a) : key(a) - key(b)));
    const table = byId("scores");
    table.replaceChildren();
    const head = table.createTHead().insertRow();
    head.append(cell("th", "method"), cell("th", "kind", "", "left"));
    [...columns, ...(columns.length > 1 ? ["mean"] : [])].forEach((name, i) => {
      const th = cell("th", ""), button = document.createElement("button");
      button.textContent = name;
      button.title = "Sort by this column";
      button.addEventListener("click", () => { sorted = i; draw(); });
      th.append(button);
      head.append(th);
    });
    if (single) head.append(cell("th", "gap"), cell("th", "setting", "", "left"));
    const body = table.createTBody();
    for (const line of lines) {
      const tr = body.insertRow();
      const th = cell("th", line.name);
      th.scope = "row";
      tr.append(th, cell("td", line.family, "", "left"));
      columns.forEach((name, i) => {
        const of = line.cells.get(name) ?? [];
        const missed = of.some((row) => row[8] === false);
        const part = of.length && of.length < most.get(name) ? ` (${of.length} of ${most.get(name)})` : "";
        const text = number(line.means[i]) + part + (single && of[0]?.[6] != null ? ` ± ${number(of[0][6])}` : "");
        const title = of.map((row) => `${row[1]}: ${row[9]}${row[7] === null ? "" : `, gap ${number(row[7])}`}`).join("\n");
        const td = cell("td", text, title);
        if (missed) td.append(cell("span", " ▲", "the gap on test rows is above .05", "missed"));
        tr.append(td);
      });
      if (columns.length > 1) tr.append(cell("td", number(line.all)));
      if (single) {
        const [row] = line.cells.get(columns[0]) ?? [[]];
        tr.append(cell("td", number(row[7])), cell("td", row[9] ?? "", "", "left"));
      }
    }
    let pictured = false;
    for (const part of document.querySelectorAll("[data-score]")) {
      part.hidden = part.dataset.score !== score;
      pictured ||= !part.hidden && part.classList.contains("picture");
    }
    byId("no-ranks").hidden = pictured;
  };

  for (const pick of picks) pick.addEventListener("change", () => { sorted = null; draw(); });
  draw();
  document.documentElement.dataset.charts = "drawn";
})();
