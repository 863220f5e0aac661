"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const charts = [];
  let paper = null; // a width while printing

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

  // -- words and colours ----------------------------------------------------------------------------------------------

  // plotly reads a little HTML in its texts: names must not become any
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const name = (text, most = 40) => {
    let short = [...String(text).replace(/\s+/g, " ")];
    // what tells settings apart stands at the end
    if (short.length > most) short = [...short.slice(0, most - 9), "…", ...short.slice(-8)];
    const plain = short.join("");
    return safe(/[\u0590-\u08ff\u202a-\u202e\u2066-\u2069\ufb1d-\ufefc]/.test(plain) ? `\u2068${plain}\u2069` : plain);
  };
  const number = (value) => value === null || value === undefined ? "undefined"
    : value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1)
    : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(3);
  const within = (low, high) => low === null || low === undefined ? "" : ` [${number(low)}, ${number(high)}]`;
  const spread = (mean, std) => number(mean) + (std === null || std === undefined ? "" : ` ± ${number(std)}`);
  const title = (metric) => data.metrics[metric].title;
  const axis = (metric, gap = " ") => {
    const better = data.metrics[metric].better;
    const way = better && `(${better} is better)`;
    return safe(title(metric)) + (way && gap + way);
  };
  const under = (metric) => words(axis(metric, narrow() ? "<br>" : " "));

  const count = data.variants.length;
  // every method has a colour, a symbol and a dash of its own, the same in all charts; with several sweeps in one report
  // the settings of a method share colour and symbol, and differ by dash
  const results = [...new Set(data.variants.map((variant) => variant.result))];
  const families = results.length > 1 && results.length < count;
  const at = (list, i) => list[i % list.length];
  const { colours, symbols, dashes, patterns } = data.looks;
  const sign = (i, setting = i) => ({ colour: at(colours, i), symbol: at(symbols, i), dash: at(dashes, setting) });
  const signs = data.variants.map(({ result }, i) => {
    const before = data.variants.slice(0, i).filter((other) => other.result === result).length;
    const family = results.indexOf(result);
    return families ? sign(family, family + before) : sign(i);
  });
  const faded = (colour) => `${colour}2e`;
  const css = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const theme = () => paper
    ? { ink: "#000", soft: "#444", line: "#ccc", back: "#fff" }
    : { ink: css("--ink"), soft: css("--soft"), line: css("--line"), back: css("--paper") };

  // -- the table against a baseline -----------------------------------------------------------------------------------

  const tests = byId("baseline-table");
  const signed = (value) => {
    const size = Math.abs(value);
    const text = size >= .00005 && size < .001 ? value.toFixed(4) : number(value);
    return (value > 0 ? "+" : "") + text.replaceAll("-", "−");
  };
  const element = (tag, kind, text) => Object.assign(document.createElement(tag), { className: kind, textContent: text });
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
  if (tests) {
    const choice = byId("baseline-variant");
    choice.append(...Object.keys(data.tests.cells).map((i) => {
      const option = new Option(data.variants[i].label.slice(0, 80), i, false, Number(i) === data.tests.baseline);
      option.dir = "auto";
      return option;
    }));
    choice.addEventListener("change", () => compareWith(Number(choice.value)));
  }

  // -- charts ---------------------------------------------------------------------------------------------------------

  const layout = (look, more) => {
    const lines = { gridcolor: look.line, zerolinecolor: look.line, linecolor: look.line, automargin: true };
    const { xaxis, yaxis, height, ...rest } = more;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, height: paper ? .75 * height : height,
      font: { color: look.ink, size: 12, family: "system-ui, sans-serif" },
      margin: { l: 56, r: 12, t: 12, b: 48 },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", maxheight: 0.35, traceorder: "normal" },
      hoverlabel: { bgcolor: look.back, bordercolor: look.line, font: { color: look.ink }, align: "left" },
      ...rest,
      ...(paper ? { width: paper, autosize: false } : { autosize: true }),
      xaxis: { ...lines, ...xaxis }, yaxis: { ...lines, ...yaxis },
    };
  };
  const words = (text) => ({ text, standoff: 8 });
  const narrow = () => (paper || window.innerWidth) < 600;
  const legendRoom = (labels) => { // rows of a horizontal legend, so that the plot keeps its height
    const width = (paper || Math.min(window.innerWidth, 1200)) - 90;
    const perRow = Math.max(1, Math.floor(width / (44 + 7 * Math.max(...labels.map((label) => Math.min(label.length, 40))))));
    return Math.min(200, 20 * Math.ceil(labels.length / perRow));
  };
  const labels = data.variants.map((variant) => variant.label);

  const line = (points, more) => {
    const sorted = [...points].sort((a, b) => a[0] - b[0]);
    return {
      type: "scatter", mode: "lines", x: sorted.map((p) => p[0]), y: sorted.map((p) => p[1]), hoverinfo: "skip",
      showlegend: false, ...more,
    };
  };

  // what a perfectly fair model might show by chance, between the fair value and the floor
  const floor = (metric, look, side) => {
    const end = data.floors[metric];
    if (end === undefined) return {};
    const fair = data.metrics[metric].better === "lower" ? 0 : 1;
    const other = side === "x" ? "y" : "x";
    const across = { [`${side}ref`]: side, [`${other}ref`]: "paper", [`${other}0`]: 0, [`${other}1`]: 1 };
    const band = { type: "rect", layer: "below", [`${side}0`]: fair, [`${side}1`]: end, fillcolor: faded(look.soft), line: { width: 0 } };
    const edge = { type: "line", layer: "below", [`${side}0`]: end, [`${side}1`]: end, line: { color: look.soft, width: 1.2, dash: "dashdot" } };
    const label = { [`${side}ref`]: side, [`${other}ref`]: "paper", [side]: end, [other]: side === "x" ? 0 : 1, xanchor: side === "x" && fair === 0 ? "left" : "right",
      yanchor: "bottom", showarrow: false, text: `noise floor ${number(end)}`, font: { color: look.ink, size: 11 } };
    return { shapes: [band, edge].map((shape) => ({ ...across, ...shape })), annotations: [label] };
  };

  const pareto = (metric, look) => {
    const ends = (variant) => [variant.final[metric], variant.final[data.quality]];
    const drawn = data.variants.filter((variant) => ends(variant).every((value) => value.mean !== null));
    const place = (variant) => ends(variant).map((value) => value.mean);
    const points = data.variants.map((variant, i) => {
      const [x, y] = ends(variant);
      const { colour, symbol } = signs[i];
      const beaten = data.pareto[metric][i];
      const hyper = Object.entries(variant.hyper).map(([key, value]) => `${name(key)} = ${name(value)}`);
      const text = [`<b>${name(variant.label, 60)}</b>`,
        `${title(data.quality)} ${spread(y.mean, y.std)}${within(y.low, y.high)}`,
        `${title(metric)} ${spread(x.mean, x.std)}${within(x.low, x.high)}`,
        `${variant.seeds.length} seed${variant.seeds.length > 1 ? "s" : ""}`, ...hyper,
        ...(variant.degenerate ? [`degenerate in ${variant.degenerate} of ${variant.seeds.length} seeds`] : []), ...(beaten ? ["dominated"] : [])];
      const bars = (value) => ({
        type: "data", symmetric: false, array: [value.high - value.mean], arrayminus: [value.mean - value.low],
        visible: value.low !== null, color: colour, thickness: 1, width: 3,
      });
      return {
        type: "scatter", mode: "markers", name: name(families ? variant.method : variant.label), x: [x.mean], y: [y.mean],
        error_x: bars(x), error_y: bars(y), hoverinfo: "text", hovertext: [text.join("<br>")],
        ...(families ? { legendgroup: String(variant.result), showlegend: false } : {}),
        marker: { color: colour, size: 11, symbol: beaten ? `${symbol}-open` : symbol, line: { color: colour, width: 2 } },
      };
    });
    const over = [["degenerate", "x-thin"], ["reference", "circle-open"]].flatMap(([state, symbol]) => { // signs over the points
      const these = drawn.filter((variant) => state === "reference" ? variant.pooled : variant.degenerate).map(place);
      return !these.length ? [] : [{
        type: "scatter", mode: "markers", name: state, x: these.map((point) => point[0]), y: these.map((point) => point[1]), hoverinfo: "skip",
        marker: { symbol, size: 19, color: look.ink, line: { color: look.ink, width: 1.5 } },
      }];
    });
    const best = drawn.filter((variant) => !variant.degenerate && !variant.pooled && !data.pareto[metric][data.variants.indexOf(variant)]);
    const paths = results.map((result) => drawn.filter((variant) => variant.result === result)).filter((variants) => variants.length > 1)
      .map((variants) => line(variants.map(place), { line: { color: signs[data.variants.indexOf(variants[0])].colour, width: 1.2 } }));
    const keys = !families ? [] : results.map((result) => { // a method's own sign, whatever its settings are
      const i = data.variants.findIndex((variant) => variant.result === result);
      const { colour, symbol } = signs[i];
      return { type: "scatter", mode: "markers", name: name(data.variants[i].method), x: [null], y: [null], legendgroup: String(result), marker: { color: colour, symbol, size: 11 } };
    });
    const front = line(best.map(place), { line: { color: look.soft, width: 1.2, dash: "dot" } });
    const entries = [...(families ? keys.map((key) => key.name) : labels), ...over.map((key) => key.name)];
    const room = entries.length > 1 && entries.length <= 20 ? legendRoom(entries) : 0; // beyond, hovering tells
    return [[...paths, front, ...points, ...over, ...keys], layout(look, {
      ...floor(metric, look, "x"),
      height: 420 + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 }, showlegend: room > 0, hovermode: "closest",
      xaxis: { title: under(metric) }, yaxis: { title: words(axis(data.quality)) },
    })];
  };

  const rounds = (metric, look) => {
    const traces = [];
    data.rounds.series.forEach((one, i) => {
      if (!(metric in one.mean)) return;
      const [mean, std] = [one.mean[metric], one.std[metric]];
      const { colour, symbol, dash } = signs[i];
      const held = one.round.map((_, k) => k).filter((k) => mean[k] !== null && std[k] !== null);
      if (byId("rounds-bands").checked && held.length > 1) {
        const back = [...held].reverse();
        traces.push({
          type: "scatter", mode: "lines", fill: "toself", fillcolor: faded(colour), line: { width: 0 },
          x: [...held, ...back].map((k) => one.round[k]), legendgroup: String(i), showlegend: false, hoverinfo: "skip",
          y: [...held.map((k) => mean[k] + std[k]), ...back.map((k) => mean[k] - std[k])],
        });
      }
      traces.push({
        type: "scatter", mode: one.round.length > 1 ? "lines+markers" : "markers", name: name(labels[i]), x: one.round, y: mean,
        legendgroup: String(i), line: { color: colour, width: 2, dash }, marker: { color: colour, symbol, size: 8, maxdisplayed: 8 }, hoverinfo: "text",
        hovertext: one.round.map((r, k) => `<b>${name(labels[i])}</b><br>round ${r}: ${spread(mean[k], std[k])}`),
      });
    });
    const room = count > 1 ? legendRoom(labels) : 0;
    return [traces, layout(look, {
      height: 360 + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 }, showlegend: count > 1,
      xaxis: { title: words("round") }, yaxis: { title: words(axis(metric)) },
    })];
  };

  const groups = (metric, look) => { // a row per method, a point per group: how far apart they are is the disparity
    const these = data[byId("groups-kind")?.value ?? "groups"];
    const values = these.values[metric];
    const rows = these.values.count?.mean;
    const step = Math.min(.16, .6 / these.names.length);
    const lift = (g) => (g - (these.names.length - 1) / 2) * step; // intervals beside each other
    const legend = these.names.map((group, g) => {
      const known = rows ? rows.map((each, i) => each[g] === null ? null : each[g] / data.variants[i].models).filter((n) => n !== null) : [];
      return name(group, narrow() ? 18 : 40) + (known.length ? ` (n = ${Math.round(Math.min(...known)).toLocaleString("en")})` : "");
    });
    const traces = these.names.map((group, g) => {
      const [mean, std, low, high] = ["mean", "std", "low", "high"].map((what) => labels.map((_, i) => values[what][i][g]));
      const apart = (a, b) => a.map((value, i) => value === null || b[i] === null ? 0 : Math.abs(value - b[i]));
      const drawn = low.some((value) => value !== null) ? [apart(high, mean), apart(mean, low)] : [std.map((s) => s ?? 0), std.map((s) => s ?? 0)];
      const { colour, symbol } = sign(g);
      return {
        type: "scatter", mode: "markers", name: legend[g], x: mean, y: labels.map((_, i) => i + lift(g)), hoverinfo: "text",
        marker: { color: colour, size: 9, symbol },
        error_x: { type: "data", symmetric: false, array: drawn[0], arrayminus: drawn[1], color: colour, thickness: 1.2, width: 3 },
        hovertext: labels.map((label, i) => [`<b>${name(label)}</b>`, `${name(group)}: ${spread(mean[i], std[i])}${within(low[i], high[i])}`,
          ...(rows && rows[i][g] !== null ? [`${Math.round(rows[i][g] / data.variants[i].models).toLocaleString("en")} test rows`] : [])].join("<br>")),
      };
    });
    const room = legendRoom(legend);
    return [traces, layout(look, {
      height: Math.max(180, Math.min(1600, 100 + (34 + 3 * these.names.length) * count)) + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 },
      showlegend: true, hovermode: "closest", xaxis: { title: under(metric) },
      yaxis: { tickmode: "array", tickvals: labels.map((_, i) => i), ticktext: labels.map((label) => name(label, narrow() ? 17 : 40)), range: [count - .5, -.5], zeroline: false },
    })];
  };

  const clients = (metric, look) => {
    const places = data.variants.map((_, i) => i);
    const drawn = data.clients.names.length > 0;
    const traces = places.map((i) => {
      const { colour, symbol } = signs[i];
      const base = { type: "box", name: name(labels[i]), marker: { color: colour, symbol, size: 5 }, line: { width: 1.3 }, fillcolor: faded(colour) };
      if (drawn) {
        const values = data.clients.mean[metric][i];
        return {
          ...base, x: values, y: values.map(() => i), orientation: "h", boxpoints: "all", jitter: .5, pointpos: 0,
          hoveron: "points", hoverinfo: "text",
          hovertext: values.map((value, k) => `client ${name(data.clients.names[k])}: ${number(value)}`),
        };
      }
      const box = data.clients.boxes[metric][i];
      const five = box ? { lowerfence: [box[0]], q1: [box[1]], median: [box[2]], q3: [box[3]], upperfence: [box[4]] } : {};
      return { ...base, ...five, y: [i], orientation: "h" };
    });
    return [traces, layout(look, {
      height: Math.max(200, Math.min(1400, 90 + 62 * count)), showlegend: false, margin: { l: 60, r: 14, t: 12, b: 52 },
      xaxis: { title: under(metric) },
      yaxis: { tickmode: "array", tickvals: places, ticktext: labels.map((label) => name(label, narrow() ? 17 : 40)), autorange: "reversed", showgrid: false, zeroline: false },
    })];
  };

  const picked = (id) => Number(byId(`${id}-variant`)?.value ?? 0);
  const calibration = (_, look) => { // a curve per group; on the diagonal, scores come true as often as they say
    const { groups } = data.calibration[picked("calibration")];
    const most = Math.max(1, ...groups.flatMap((group) => group.curve.map((point) => point.rows)));
    const legend = groups.map((group) => `${name(group.name, narrow() ? 18 : 40)} (n = ${Math.round(group.rows).toLocaleString("en")}, ECE ${group.error === null ? group.absent : number(group.error)})`);
    const traces = groups.map(({ name: group, curve }, g) => {
      const { colour, symbol, dash } = sign(g);
      return {
        type: "scatter", mode: "lines+markers", name: legend[g], x: curve.map((point) => point.score), y: curve.map((point) => point.rate),
        line: { color: colour, width: 1.5, dash }, marker: { color: colour, symbol, size: curve.map((point) => 6 + 12 * Math.sqrt(point.rows / most)), opacity: 1, line: { color: colour, width: 1 } },
        error_y: {
          type: "data", symmetric: false, array: curve.map((point) => point.high - point.rate), arrayminus: curve.map((point) => point.rate - point.low),
          color: colour, thickness: 1, width: 3,
        },
        hoverinfo: "text",
        hovertext: curve.map((point) => `<b>${name(group)}</b><br>mean score ${number(point.score)}<br>came true ${number(point.rate)}${within(point.low, point.high)}<br>${number(point.rows)} rows`),
      };
    });
    const diagonal = line([[0, 0], [1, 1]], { line: { color: look.soft, width: 1.2, dash: "dash" } });
    const room = legendRoom(legend);
    return [[diagonal, ...traces], layout(look, {
      height: 420 + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 }, showlegend: true, hovermode: "closest",
      xaxis: { title: words("mean score of the bin"), range: [-.02, 1.02] }, yaxis: { title: words("share that came true"), range: [-.02, 1.02] },
    })];
  };

  const local = (metric, look) => { // a row per client, sorted by its gap
    const found = data.local[metric][picked("local")];
    const height = { height: 120 };
    if (!found?.listed) {
      const text = found ? "Too many clients to draw; see the table." : "No client of this method has both groups among its disclosed test rows.";
      return [[], layout(look, { ...height, annotations: [{ text, showarrow: false, xref: "paper", yref: "paper", x: .5, y: .5 }], xaxis: { visible: false }, yaxis: { visible: false } })];
    }
    const labelled = found.clients.length <= 60;
    const kinds = { "": ["not opposite", "circle"], "opposite by sign": ["opposite by sign", "triangle-left-open"], opposite: ["opposite beyond chance", "triangle-left"] };
    const traces = Object.entries(kinds).flatMap(([mark, [words, symbol]], i) => {
      const at = found.clients.map((_, k) => k).filter((k) => found.clients[k].mark === mark);
      const these = at.map((k) => found.clients[k]);
      return !at.length ? [] : [{
        type: "scatter", mode: "markers", name: `${words} (${at.length})`, x: these.map((client) => client.gap), y: at,
        marker: { color: i ? colours[1] : colours[0], symbol, size: labelled ? 11 : 7, line: { color: i ? colours[1] : colours[0], width: 2 } },
        error_x: {
          type: "data", symmetric: false, array: these.map((client) => client.high - client.gap), arrayminus: these.map((client) => client.gap - client.low),
          color: i ? colours[1] : colours[0], thickness: 1, width: labelled ? 3 : 0,
        },
        hoverinfo: "text",
        hovertext: these.map((client) => `<b>client ${name(client.name)}</b><br>${signed(client.gap)} [${signed(client.low)}, ${signed(client.high)}]<br>${number(client.rows)} rows of the smaller group${client.few ? ": few" : ""}`),
      }];
    });
    const rows = found.clients.length;
    const upright = (x, dash) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: dash ? look.ink : look.soft, width: 1.3, dash: dash || "solid" } });
    const over = { x: found.overall, y: 1, yref: "paper", yanchor: "bottom", showarrow: false, text: `all clients ${signed(found.overall)}` };
    const ahead = found.pair ? `: ${name(found.pair[0], 18)} minus ${name(found.pair[1], 18)}` : "";
    const room = legendRoom(traces.map((trace) => trace.name)) + 18;
    return [traces, layout(look, {
      height: Math.max(200, labelled ? 22 * rows + 110 : Math.min(900, 4 * rows + 140)) + room, margin: { l: 60, r: 14, t: 16 + room, b: 52 },
      showlegend: true, hovermode: "closest", shapes: [upright(0), upright(found.overall, "dash")], annotations: [over],
      legend: { orientation: "h", x: 0, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", pad: { b: 20 } },
      xaxis: { title: words(`${safe(title(metric))}${narrow() ? "<br>" : ""}${ahead}`) },
      yaxis: labelled
        ? { tickmode: "array", tickvals: found.clients.map((_, k) => k), ticktext: found.clients.map((client) => name(client.name, narrow() ? 12 : 30) + (client.few ? " (few rows)" : "")), range: [rows - .5, -.5], showgrid: false, zeroline: false }
        : { title: words("clients, sorted"), showticklabels: false, range: [rows, -1], showgrid: false, zeroline: false },
    })];
  };

  const partition = (part) => (_, look) => {
    const upright = part.clients.length > 60; // too many for a labelled bar each
    const places = part.clients.map((_, k) => k);
    const cells = part.groups.flatMap((group, g) => part.classes.map((label, c) => [group, g, label, c]));
    const names = cells.map(([group, , label]) => `${group}, ${label}`);
    const traces = cells.map(([group, g, label, c], i) => { // a colour for each group, a pattern for each cell
      const rows = part.cells.map((client) => client[g][c]);
      return {
        type: "bar", name: name(names[i]), orientation: upright ? "v" : "h", x: upright ? places : rows, y: upright ? rows : places,
        marker: {
          color: at(colours, g), line: { color: at(colours, g), width: 1 },
          pattern: { shape: at(patterns, i), fgcolor: at(colours, g), bgcolor: look.back, size: 6, solidity: .35, fillmode: "overlay" },
        },
        hoverinfo: "text",
        hovertext: rows.map((n, k) => `client ${name(part.clients[k])}<br>${name(group)}, ${name(label)}: ${n} rows`),
      };
    });
    const room = legendRoom(names);
    const which = upright
      ? { title: words("client"), showticklabels: false, showgrid: false }
      : { tickmode: "array", tickvals: places, ticktext: part.clients.map((each) => name(each, narrow() ? 17 : 40)), autorange: "reversed", title: words("client"), showgrid: false, zeroline: false };
    const size = { title: words("training rows") };
    return [traces, layout(look, {
      barmode: "stack", showlegend: true, margin: { l: 60, r: 14, t: 16 + room, b: 52 },
      height: (upright ? 380 : Math.max(200, 24 * part.clients.length + 90)) + room, bargap: upright ? 0 : .25,
      xaxis: upright ? which : size, yaxis: upright ? size : which,
    })];
  };

  // -- putting them on the page ---------------------------------------------------------------------------------------

  const plainly = (text) => text.replace("<br>", " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const inWords = (place, { xaxis, yaxis }) => { // for who cannot see it: the section's heading, the axes, how many methods
    const axes = [["across", xaxis], ["upwards", yaxis]].filter(([, { title }]) => title)
      .map(([way, { title }]) => `${way} ${plainly(title.text)}`);
    const heading = place.closest("section").querySelector("h2").textContent;
    return `Chart, ${heading}: ${axes.join(", ")}; ${count} ${count > 1 ? "methods or settings" : "method"}`;
  };
  const draw = ({ place, make, select }) => {
    const metric = select?.value ?? null;
    const help = select && byId(select.id.replace("metric", "help"));
    if (help) help.textContent = data.metrics[metric].help;
    const [traces, about] = make(metric, theme());
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", inWords(place, about));
    return Plotly.react(place, traces, about, { displayModeBar: false, responsive: !paper, typesetMath: false });
  };
  const add = (id, make, metrics, first) => {
    const place = byId(`${id}-chart`);
    if (!place) return;
    const select = metrics ? byId(`${id}-metric`) : null;
    if (select) {
      for (const [heading, some] of Object.entries(metrics)) {
        const options = some.map((metric) => new Option(title(metric), metric, false, metric === first));
        if (!heading || !some.length) { select.append(...options); continue; }
        const group = document.createElement("optgroup");
        group.label = heading;
        group.append(...options);
        select.append(group);
      }
      select.addEventListener("change", () => draw(chart));
    }
    const chart = { place, make, select };
    charts.push(chart);
    draw(chart);
  };
  const show = () => {
    const first = (names, wanted) => wanted.find((each) => names.includes(each)) ?? names[0];
    const rates = data.groups.drawn;
    const { metrics, logged } = data.rounds;
    // what silos withhold is no chart to begin with
    const some = (values) => values.some((value) => Array.isArray(value) ? some(value) : value !== null);
    const drawn = metrics.filter((metric) => data.rounds.series.some((one) => some(one.mean[metric] ?? [])));
    const counted = rates.filter((metric) => some(data.groups.values[metric].mean));
    const spread = data.clients.metrics.filter((metric) => some(data.clients.boxes[metric]));
    add("pareto", pareto, { "": Object.keys(data.pareto) }, data.disparity);
    add("rounds", rounds, logged.length ? { measured: metrics, "logged by the methods": logged } : { "": metrics }, first(drawn, [data.quality, data.disparity]));
    add("groups", groups, { "": rates }, first(counted, ["selection_rate", "accuracy", "rmse"]));
    add("clients", clients, { "": data.clients.metrics }, first(spread, [data.quality]));
    for (const choice of document.querySelectorAll("#calibration-variant, #local-variant")) {
      choice.append(...labels.map((label, i) => new Option(label.slice(0, 80), i, false, label === choice.dataset.first)));
    }
    add("calibration", calibration);
    add("local", local, { "": Object.keys(data.local) }, data.disparity);
    for (const [control, id] of [["rounds-bands", "rounds"], ["groups-kind", "groups"], ["calibration-variant", "calibration"], ["local-variant", "local"]]) {
      byId(control)?.addEventListener("change", () => draw(charts.find((chart) => chart.place.id === `${id}-chart`)));
    }
    data.partitions.forEach((part, i) => {
      const place = byId(`partition-chart-${i}`);
      if (!place) return;
      const chart = { place, make: partition(part), select: null };
      charts.push(chart);
      draw(chart);
    });
  };
  const again = () => charts.forEach(draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  window.addEventListener("beforeprint", () => { paper = 680; again(); });
  window.addEventListener("afterprint", () => { paper = null; again(); });

  const unpack = async () => {
    const packed = Uint8Array.from(atob(byId("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const code = document.createElement("script");
    code.textContent = await new Response(stream).text();
    document.head.append(code);
  };
  const say = (state) => { document.documentElement.dataset.charts = state; };
  unpack().then(show).then(() => say("drawn")).catch((error) => {
    console.error(error);
    say("failed");
    for (const place of document.querySelectorAll(".chart")) {
      place.textContent = "This chart could not be drawn; it needs a browser from 2023 or later. The tables are complete.";
    }
  });
})();
