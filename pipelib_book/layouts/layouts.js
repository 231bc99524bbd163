// The player of layouts: which lane holds which element of a tile, where the element lies in SMEM, and the wavefronts of
// an access. All numbers come from layouts.json, which pipelib_book.layouts makes; what its tables mean is said there.

const LANES = 32, BANKS = 32, WORD = 4, HIGH = 14, GUTTER = 22, LAYOUT = 3, ACCESS = 4;
const NAMES = ["Numbers", "Tile", "Swizzle", "Layout", "Access"], KEPT = [8, 2, 4, 16, 1];  // what a new choice keeps first
const COLOURS = [[86, 180, 233], [230, 159, 0], [0, 170, 125], [213, 140, 185]], SHARED = "rgb(190 190 190)";
const COMPILED = {
  staggered: "By default the compiler sends half of the lanes to another tile first, which ends the conflict.",
  refused: "By default the compiler refuses a conflict that it cannot mend; with optimized=False, plgpu.load does it as drawn.",
};

for (const place of document.querySelectorAll(".pipelib-layouts"))
  fetch(new URL("layouts.json", import.meta.url)).then((found) => found.json()).then((data) => player(place, data));

const filled = (node, ...children) => (node.append(...children), node);
const element = (name, properties = {}, ...children) => filled(Object.assign(document.createElement(name), properties), ...children);

// A whole table of its entries at 1, 2, 4, 8, ...: the others are the exclusive or of these.
const spread = (basis) => basis.reduce((table, entry) => [...table, ...table.map((other) => other ^ entry)], [0]);
const unique = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
const plural = (what, numbers) => `${what}${unique(numbers).length > 1 ? "s" : ""} ${listed(numbers)}`;
const colour = (warp, lane) => `rgb(${COLOURS[warp].map((part) => Math.round(part + (255 - part) * 0.6 * lane / LANES)).join(" ")})`;

// Numbers in words: those that follow each other as a range.
function listed(numbers) {
  const runs = [];
  for (const n of unique(numbers)) runs.at(-1)?.[1] === n - 1 ? (runs.at(-1)[1] = n) : runs.push([n, n]);
  return runs.map(([a, b]) => (a === b ? a : `${a}${b === a + 1 ? "," : " to"} ${b}`)).join(", ");
}

function player(place, { menus, combinations }) {
  let c = combinations[0], tables = {}, holders = [], looks = [], hovered = null;  // holders: positions by element

  const choices = (options, onchange) => element("select", { onchange }, ...options.map(([value, text]) => new Option(text, value)));
  const selects = menus.map((options, field) => choices(options, () => take(field)));
  const warp = choices(COLOURS.map((_, n) => [n, n]), show);
  const lane = element("input", { type: "number", min: 0, max: LANES - 1, value: 0, oninput: show });
  const wave = element("input", { type: "range", min: 0, value: 0, ariaLabel: "Wavefront", oninput: reveal });
  const step = (by, text) => element("button", { type: "button", textContent: text, onclick: () => { wave.value = Number(wave.value) + by; reveal(); } });
  const said = ["changed", "counted", "compiled", "has", "waved"].map((className) => element("p", { className, role: "status" }));
  const [changed, counted, compiled, has, waved] = said;
  const inRegisters = picture("The tile in registers"), inMemory = picture("The tile in SMEM");
  const labelled = (text, input) => element("label", {}, `${text} `, input);
  inMemory.caption.textContent = "In SMEM: a column for each of the 32 banks, a row for each 128 bytes; the number is the lane that moves the word.";
  place.replaceChildren(
    element("div", { className: "bar menus" }, ...selects.map((select, field) => labelled(NAMES[field], select))), changed, counted, compiled,
    element("div", { className: "bar" }, labelled("Warp", warp), labelled("Lane", lane),
      ...COLOURS.map((_, n) => element("span", { className: "key", style: `background: ${colour(n, 0)}`, textContent: `warp ${n}` }))),
    has, inRegisters.node,
    element("div", { className: "bar" }, step(-1, "Previous wavefront"), step(1, "Next wavefront"), wave), waved, inMemory.node);

  // A new choice in one menu: of the combinations that have it, the one most like what was there.
  function take(field) {
    const wanted = selects.map((select) => select.value);
    const alike = ({ choice }) => choice.reduce((sum, value, at) => sum + (String(value) === wanted[at] ? KEPT[at] : 0), 0);
    const have = combinations.filter(({ choice }) => String(choice[field]) === wanted[field]);
    c = have.reduce((best, other) => (alike(other) > alike(best) ? other : best));
    const others = NAMES.filter((_, at) => at !== ACCESS && String(c.choice[at]) !== wanted[at]);
    open(others.length ? `Also changed, to fit: ${others.join(", ").toLowerCase()}.` : "");
  }

  function open(note) {
    tables = Object.fromEntries(["elements", "warps", "places", "turns"].map((name) => [name, spread(c[name])]));
    holders = tables.places.map(() => []);
    tables.elements.forEach((held, position) => holders[held].push(position));
    looks = holders.map(look);
    const accesses = combinations.filter(({ choice }) => choice.every((value, at) => at === ACCESS || value === c.choice[at])).map(({ choice }) => choice[ACCESS]);
    for (const option of selects[ACCESS].options) option.hidden = option.disabled = !accesses.includes(option.value);
    selects.forEach((select, field) => { select.value = c.choice[field]; });
    [wave.max, wave.value] = [c.wavefronts - 1, 0];
    counted.textContent = `${c.wavefronts.toLocaleString("en")} wavefronts; the least for these instructions is ${c.least}. ` +
      (c.turn > 1 ? `Lanes that the memory serves together want ${c.turn} different words of bank ${picked().bank}: ${c.turn} wavefronts for each that is needed.`
        : `No banks conflict, ${c.least > c.full ? `but wavefronts are not full: ${c.full * BANKS * WORD} bytes would fill ${c.full}` : "and every wavefront is full"}.`);
    changed.textContent = note;
    compiled.textContent = COMPILED[c.compiler] ?? "";
    show();
  }

  // Who moves what is at a position of the tables, and to which bank it goes.
  const who = (position) => ({ lane: Math.floor(position / c.held) % LANES, warp: tables.warps[Math.floor(position / c.held / LANES)] });
  const bankOf = (position) => Math.floor(tables.places[tables.elements[position]] / WORD) % BANKS;

  // The wavefront that is picked: its group's positions, those that it moves, and a bank that most words are wanted of.
  function picked() {
    const turn = Number(wave.value) % c.turn, group = Math.floor(wave.value / c.turn), each = c.group * c.held;
    const all = Array.from({ length: each }, (_, n) => group * each + n), bank = bankOf(all.find((position) => tables.turns[position] === c.turn - 1));
    return { turn, group, all, bank, moved: all.filter((position) => tables.turns[position] === turn) };
  }

  function show() {
    const { turn, group, all, bank, moved } = picked(), lanes = (positions) => plural("lane", positions.map((position) => who(position).lane));
    waved.textContent = `Instruction ${Math.floor(group * c.group / LANES) + 1} of ${c.instructions}, by warp ${who(all[0]).warp}: the memory serves ${lanes(all)} together. ` +
      (c.turn > 1 ? `Bank ${bank} is wanted by ${lanes(all.filter((position) => bankOf(position) === bank))} for ${c.turn} words. ` : "") +
      `Wavefront ${turn + 1} of ${c.turn} moves the words with a thick frame, for ${lanes(moved)}${c.turn > 1 ? "; those of the others have a dashed frame" : ""}.`;
    wave.setAttribute("aria-valuetext", `${Number(wave.value) + 1} of ${c.wavefronts}`);
    const chosen = hovered ?? { warp: Number(warp.value), lane: Math.min(Math.max(Math.round(lane.value), 0), LANES - 1) };
    const own = new Set(tables.elements.filter((_, position) => who(position).warp === chosen.warp && who(position).lane === chosen.lane));
    const rows = unique([...own].map((held) => Math.floor(held / c.array[1]))), columns = unique([...own].map((held) => held % c.array[1]));
    const isSplat = c.choice[LAYOUT] === "WG_SPLAT";
    has.textContent = `Lane ${chosen.lane} of warp ${chosen.warp} ${isSplat ? "holds the one number, as all lanes do, and writes" : "holds"} ${own.size} elements: of ` +
      (rows.length * columns.length === own.size ? `${plural("row", rows)}, ${plural("column", columns)}.` : `${listed([...own])} in row-major order.`);
    inRegisters.caption.textContent = "In registers: the number is the lane that " + (isSplat ? "writes" : "holds") + " the element, black the lane you chose." +
      (holders[0].length > 1 ? " Several lanes hold each, of all warps where it is grey." : "");
    const frames = new Set(moved.map((position) => tables.elements[position])), waits = new Set(all.map((position) => tables.elements[position]));
    draw((held) => ({ own: own.has(held), frame: frames.has(held), waits: waits.has(held) }));
  }

  // Another wavefront: the pictures scroll to it.
  function reveal() {
    show();
    for (const { box, framed } of [inRegisters, inMemory])
      if (framed < box.scrollTop || framed > box.scrollTop + box.clientHeight - 4 * HIGH) box.scrollTop = framed - 2 * HIGH;
  }

  // ---- Pictures ----

  function picture(title) {
    const canvas = element("canvas", { role: "img", ariaLabel: title }), caption = element("figcaption");
    const box = element("div", { className: "box", tabIndex: 0, role: "region", ariaLabel: title }, canvas);
    const sheet = { canvas, caption, box, cells: [], node: element("figure", {}, caption, box) };
    const over = ({ offsetX, offsetY }) => {
      const found = sheet.cells.find(([x, y, wide]) => offsetX >= x && offsetX < x + wide && offsetY >= y && offsetY < y + HIGH)?.[3];
      return found === undefined ? null : who(holders[found].find((position) => who(position).warp === Number(warp.value)) ?? holders[found][0]);
    };
    const hover = (found) => { hovered = found; show(); };
    const choose = (found) => { if (found) [warp.value, lane.value] = [found.warp, found.lane]; show(); };
    Object.assign(canvas, { onpointermove: (event) => hover(over(event)), onpointerleave: () => hover(null), onclick: (event) => choose(over(event)) });
    new ResizeObserver(show).observe(box);
    return sheet;
  }

  // Sizes a canvas for so many columns and rows; its pen draws in CSS pixels.
  function prepare(sheet, columns, rows, least, most, gutter) {
    const ratio = devicePixelRatio || 1, wide = Math.min(most, Math.max(least, (sheet.box.clientWidth - gutter - 1) / columns));
    const [width, height] = [gutter + wide * columns, HIGH * rows], pen = sheet.canvas.getContext("2d");
    Object.assign(sheet.canvas, { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio) });
    Object.assign(sheet.canvas.style, { width: `${width}px`, height: `${height}px` });
    pen.scale(ratio, ratio);
    Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
    Object.assign(sheet, { cells: [], framed: undefined });
    return { pen, wide };
  }

  // How an element looks, by the positions that hold it.
  function look(positions) {
    const all = positions.map(who), [{ warp, lane }] = all, isShared = all.some((other) => other.warp !== warp), lanes = unique(all.map((other) => other.lane));
    const range = lanes.at(-1) - lane === lanes.length - 1 ? `–${lanes.at(-1)}` : ", …";
    return { fill: isShared ? SHARED : colour(warp, lane), key: isShared ? lane : warp * LANES + lane, label: `${lane}${lanes.length > 1 ? range : ""}` };
  }

  // Some elements side by side of one lane, with its number and marks.
  function cell(sheet, pen, x, y, wide, held, mark) {
    const { fill, label } = looks[held], ink = mark.own ? "255 255 255" : "0 0 0", inset = mark.own ? 2 : 1;
    sheet.cells.push([x, y, wide, held]);
    if (mark.frame) sheet.framed ??= y;
    pen.fillStyle = mark.own ? "#000" : fill;
    pen.fillRect(x, y, wide - 0.6, HIGH - 0.6);
    Object.assign(pen, { strokeStyle: `rgb(${ink})`, lineWidth: mark.frame ? 2 : 1 });
    pen.setLineDash(mark.frame ? [] : [2, 2]);
    if (mark.waits) pen.strokeRect(x + inset, y + inset, wide - 2 * inset - 0.6, HIGH - 2 * inset - 0.6);
    words(pen, label, x + wide / 2, y, `rgb(${ink})`, Math.min(10, (wide - 1) / label.length * 1.75));
  }

  function words(pen, text, x, y, ink, points) {
    if (points < 6) return;
    Object.assign(pen, { font: `${points}px system-ui, sans-serif`, fillStyle: ink });
    pen.fillText(text, x, y + HIGH / 2 + 0.5);
  }

  function draw(mark) {
    const [rows, columns] = c.array, isAlone = columns === 1 || looks[0].key !== looks[1].key;
    const { pen, wide } = prepare(inRegisters, columns, rows, rows === 1 || columns === 1 ? 26 : isAlone ? 13 : 9, 44, 0);
    const alike = (held, marks = mark(held)) => [looks[held].key, marks.frame, marks.waits].join();
    for (let row = 0; row < rows; row++)
      for (let column = 0, next; column < columns; column = next) {
        const first = row * columns + column;
        for (next = column + 1; next < columns && alike(first) === alike(first + next - column); ) next++;
        cell(inRegisters, pen, column * wide, row * HIGH, (next - column) * wide, first, mark(first));
      }

    const size = c.choice[0] / 8, at = [], lines = Math.ceil(tables.places.length * size / BANKS / WORD);
    tables.places.forEach((place, held) => { at[place / size] = held; });
    const memory = prepare(inMemory, BANKS, lines + 1, 13, 30, GUTTER), ink = getComputedStyle(place).color;
    for (let bank = 0; bank < BANKS; bank += memory.wide < 12 ? 4 : 1) words(memory.pen, bank, GUTTER + (bank + 0.5) * memory.wide, 0, ink, 9);
    for (let line = 0; line < lines; line++) words(memory.pen, line, GUTTER / 2 - 2, (line + 1) * HIGH, ink, 9);
    for (let word = 0; word < at.length * size / WORD; word++) {
      const held = at.slice(word * WORD / size, (word + 1) * WORD / size), isOne = held.every((other) => looks[other].key === looks[held[0]].key);
      const parts = isOne ? held.slice(0, 1) : held, each = memory.wide / parts.length, x = GUTTER + word % BANKS * memory.wide;
      parts.forEach((part, n) => cell(inMemory, memory.pen, x + n * each, (Math.floor(word / BANKS) + 1) * HIGH, each, part, mark(part)));
    }
  }

  new MutationObserver(show).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  open("");
  place.dataset.ready = "";
}
