"use strict";
(() => {
  const byId = (id) => document.getElementById(id);

  // -- tables ---------------------------------------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (row) => {
        const cell = row.cells[i];
        return "v" in cell.dataset ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : cell.textContent;
      };
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === null || y === null) return (x === null) - (y === null); // undefined stays last
        const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
        return up ? order : -order;
      };
      body.append(...[...body.rows].sort(compare));
    }));
  }

  const number = (value) => value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1)
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(3);

  // -- the table against a baseline -----------------------------------------------------------------------------------

  const tests = byId("baseline-table");
  const signed = (value) => {
    const size = Math.abs(value);
    const text = size >= .00005 && size < .001 ? value.toFixed(4) : number(value);
    return (value > 0 ? "+" : "") + text.replaceAll("-", "−");
  };
  const element = (tag, kind, text) => Object.assign(document.createElement(tag), { className: kind, textContent: text });
  const choose = ({ detail: data }) => {
    const compareWith = (baseline) => {
      for (const row of tests.tBodies[0].rows) {
        const variant = Number(row.dataset.variant);
        row.className = variant === baseline ? "base" : "";
        data.tests.cells[baseline][variant].forEach((test, k) => {
          const cell = row.cells[k + 1];
          cell.dataset.v = test ? test.difference : "";
          cell.className = test ? test.says : "";
          if (!test) {
            cell.replaceChildren(variant === baseline ? "–" : element("span", "undefined", "no test"));
            return;
          }
          cell.replaceChildren(`${signed(test.difference)} `, element("span", "interval", `[${signed(test.low)}, ${signed(test.high)}]`), " ",
            element("span", "p", test.holm < .001 ? "p < 0.001" : `p = ${test.holm.toFixed(3)}`));
        });
      }
    };
    const choice = byId("baseline-variant");
    choice.append(...Object.keys(data.tests.cells).map((i) => {
      const option = new Option(data.variants[i].label.slice(0, 80), i, false, Number(i) === data.tests.baseline);
      option.dir = "auto";
      return option;
    }));
    choice.addEventListener("change", () => compareWith(Number(choice.value)));
  };
  if (tests) document.addEventListener("numbers", choose);
})();
