// Every text and mark that the page shows, against what it stands on, by WCAG's contrast.
(() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const shown = (element) => element.checkVisibility() && element.getClientRects().length;
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const contrast = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = { texts: 0, marks: 0, weak: [] };
  const check = (kind, least, element, colour, name) => {
    found[kind] += 1;
    const value = contrast(parse(colour), behind(element));
    if (value < least) found.weak.push(`${name}: ${value.toFixed(2)}`);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const owner = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "OPTION", "NOSCRIPT"].includes(owner.tagName) || !shown(owner)) continue;
    const style = getComputedStyle(owner);
    check("texts", 4.5, owner, owner.closest("svg") ? style.fill : style.color, `text ${node.data.trim().slice(0, 40)}`);
  }
  for (const mark of document.querySelectorAll(".chart .role-mark :is(path, line)")) {
    const style = getComputedStyle(mark);
    const drawn = [style.stroke, style.fill].filter((colour) => colour.startsWith("rgb") && (parse(colour)[3] ?? 1) === 1);
    if (!shown(mark) || !drawn.length || mark.getAttribute("opacity") === "0") continue;
    check("marks", 3, mark, drawn[0], `mark ${mark.parentElement.getAttribute("class")} in ${mark.closest(".chart").dataset.chart} ${drawn[0]}`);
  }
  return found;
})();
