// The player of a record (its form: recorder.py). Everything on the page is a function of `now`, a time of the record.
"use strict";
(() => {
const el = (id) => document.getElementById(id);
const record = JSON.parse(el("record").textContent);
const { blocks, layers, directions, steps, backward } = record;
const events = record.events.map((event, number) => ({ ...event, number }));

const SECONDS = 20; // that the whole record takes at normal speed
const BARS = 3000; // of a page of the timeline, at most, if it can be chosen
const ROW = 24, AXIS = 26, CELL_HEIGHT = 34, MARGIN = 92;

// ---- the record, by what is looked up ------------------------------------------------------------------------------
const begin = Math.min(...bounds((event) => event.start)), end = Math.max(...bounds((event) => event.end));
const moments = [...new Set(events.flatMap((event) => [event.start, event.end]))].sort((a, b) => a - b);
const lanes = blocks.map(() => []);
for (const event of [...events].sort((a, b) => a.start - b.start)) lanes[event.block].push(event);

function bounds(value) { // an array that Math.min can take, however many events there are
  return [events.reduce((found, event) => Math.min(found, value(event)), Infinity),
    events.reduce((found, event) => Math.max(found, value(event)), -Infinity)];
}

// The last place of a sorted list whose value is not above `limit`; -1 if there is none.
function lastUpTo(list, limit, value = (one) => one) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (value(list[middle]) <= limit) low = middle + 1; else high = middle;
  }
  return low - 1;
}

// What a block does at a time; undefined: nothing.
function doing(block, time) {
  const event = lanes[block][lastUpTo(lanes[block], time, (one) => one.start)];
  return event && time < event.end ? event : undefined;
}

const kindOf = (event) => {
  const last = event.waits_for.at(-1);
  if (event.kind !== "wait") return event.kind;
  return last && (last.layer !== event.layer || last.direction !== event.direction) ? "wait-other" : "wait-own";
};

// Steps of the picture "layers and time": per layer, direction and step its events, and for each block when it is done.
const cells = new Map(), published = events.some((event) => event.kind === "publish");
const ends = (event) => (published ? event.kind === "publish" : event.kind !== "wait");
const keyOf = ({ layer, direction, step }) => `${layer} ${direction} ${step}`;
for (const event of events) {
  if (event.step === undefined || event.step >= steps) continue;
  if (!cells.has(keyOf(event))) cells.set(keyOf(event), { events: [], done: new Map() });
  const cell = cells.get(keyOf(event));
  cell.events.push(event);
  if (ends(event)) cell.done.set(event.block, Math.max(event.end, cell.done.get(event.block) ?? begin));
}
const publishedAt = new Map(); // block and step -> when it was published
for (const event of events) if (event.kind === "publish") publishedAt.set(`${event.block} ${keyOf(event)}`, event.end);
// What a wait still lacks at a time; all that it ever lacked, if no time is given.
const lacks = (event, time) => event.waits_for.filter((one) => time === undefined ||
  one.block === undefined || !(publishedAt.get(`${one.block} ${keyOf(one)}`) <= time));
const shares = new Map(); // layer and direction -> how many blocks work on each of its steps
for (const [key, cell] of cells) {
  const place = key.split(" ").slice(0, 2).join(" ");
  shares.set(place, Math.max(shares.get(place) ?? 1, cell.done.size));
}
const timeOf = (direction, step) => ((direction === 1) === backward ? step : steps - 1 - step);
const frontOf = (layer, step) => step + (backward ? layers - 1 - layer : layer);

// ---- words ---------------------------------------------------------------------------------------------------------
const number = (value, digits = 1) => value.toLocaleString("en", { maximumFractionDigits: digits });
const span = (value) => `${number(value, 0)} turns`;
const shortName = (block) => blocks[block].name.split(":")[0];
const arrow = (direction) => (directions > 1 ? ` ${"→←"[direction]}` : "");
const place = (one) => `layer ${one.layer}${arrow(one.direction)}, step ${one.step}`;

// "layer 0, step 3 from block 1 and block 2", of each step that a wait lacks.
function listed(lacked) {
  const from = new Map();
  for (const one of lacked) from.set(place(one), [...(from.get(place(one)) ?? []), ...(one.block === undefined ? [] : [shortName(one.block)])]);
  return [...from].map(([what, whom]) => what + (whom.length ? ` from ${whom.join(" and ")}` : "")).join(", and ");
}

function sentence(event, time) {
  const what = event.step === undefined ? "" : event.step === steps ? "the initial state" : place(event);
  const words = { load: "loads its weights", multiply: `multiplies for ${what}`, publish: `publishes its part of ${what}` };
  if (event.kind !== "wait") return words[event.kind];
  const whom = listed(lacks(event, time)), long = `${span(event.end - event.start)} long`;
  return `waits: for ${what} it ${whom ? `needs ${whom}` : "has now been given all, and not looked yet"}; ${long}`;
}

// Describe what a block does at a moment, or that it is idle.
function told(block, time) {
  const event = doing(block, time);
  if (event) return sentence(event, time);
  return time >= (lanes[block].at(-1)?.end ?? begin) ? "is done" : "is between two steps";
}

// ---- drawing -------------------------------------------------------------------------------------------------------
function svg(tag, attributes = {}, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function hatch(id, name, angle) {
  const pattern = svg("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` });
  pattern.append(svg("rect", { width: 6, height: 6, class: name }), svg("line", { y2: 6, class: "hatch-line" }));
  return pattern;
}

function definitions() {
  const tip = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9,
    orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" }, [svg("path", { d: "M0 0 L8 4 L0 8 z" })]);
  return svg("defs", {}, [hatch("hatch-own", "hatch-own", 45), hatch("hatch-other", "hatch-other", -45), tip("tip"), tip("tip-pointed")]);
}

const rows = []; // of the grid, from above
for (let layer = 0; layer < layers; layer++) {
  for (let direction = 0; direction < directions; direction++) rows.push({ layer, direction });
}
const squares = new Map(); // key of a cell -> its elements

function drawGrid() {
  const room = el("grid-box").clientWidth - MARGIN - 4, size = Math.max(7, Math.min(60, room / steps));
  const picture = el("grid"), height = AXIS + rows.length * CELL_HEIGHT;
  picture.replaceChildren();
  picture.setAttribute("width", MARGIN + steps * size + 4);
  picture.setAttribute("height", height);
  const every = Math.max(1, Math.ceil(30 / size));
  for (let t = 0; t < steps; t += every) {
    picture.append(svg("text", { x: MARGIN + (t + 0.5) * size, y: 15, class: "muted", "text-anchor": "middle" }, [`${t}`]));
  }
  picture.append(svg("text", { x: 0, y: 15, class: "muted" }, ["time"]));
  rows.forEach(({ layer, direction }, row) => {
    const y = AXIS + row * CELL_HEIGHT;
    picture.append(svg("text", { x: 0, y: y + CELL_HEIGHT / 2, "dominant-baseline": "central" }, [`layer ${layer}${arrow(direction)}`]));
    for (let step = 0; step < steps; step++) {
      const x = MARGIN + timeOf(direction, step) * size, box = { x: x + 1, y: y + 1, width: size - 2, height: CELL_HEIGHT - 2, rx: 3 };
      const inner = { x: x + 2, y: y + 2, width: size - 4, height: CELL_HEIGHT - 4, rx: 2 };
      const square = { back: svg("rect", { ...box, class: "todo" }), fill: svg("rect", { ...box, class: "publish" }) };
      const label = directions === 1 && size > 22 ? [`${frontOf(layer, step)}`] : [];
      square.group = svg("g", { class: "grid-cell", "data-cell": keyOf({ layer, direction, step }) }, [square.back, square.fill,
        svg("rect", { ...inner, class: "frame" }), svg("text", { x: x + size / 2, y: y + CELL_HEIGHT / 2 }, label)]);
      squares.set(keyOf({ layer, direction, step }), square);
      picture.append(square.group);
    }
  });
}

function updateGrid() {
  let at = Infinity; // the leftmost x of what is in work: it stays in sight
  for (const [key, square] of squares) {
    const cell = cells.get(key), total = shares.get(key.split(" ").slice(0, 2).join(" "));
    const done = cell ? [...cell.done.values()].filter((time) => time <= now).length / total : 0;
    const active = cell ? cell.events.filter((event) => event.start <= now && (now < event.end)) : [];
    const work = active.find((event) => event.kind !== "wait");
    const state = work ? "multiply" : active.length ? kindOf(active[0]) : "todo";
    if (active.length) at = Math.min(at, Number(square.back.getAttribute("x")));
    const busy = work || done === 1, front = active.length || done > 0 && done < 1;
    square.back.setAttribute("class", state);
    square.fill.setAttribute("height", (CELL_HEIGHT - 2) * done);
    square.fill.setAttribute("y", Number(square.back.getAttribute("y")) + (CELL_HEIGHT - 2) * (1 - done));
    const waiting = !busy && active.length;
    square.group.setAttribute("class", `grid-cell${busy ? " busy" : ""}${waiting ? " waiting" : ""}${pointedClass(key)}`);
    square.group.dataset.state = done === 1 ? "done" : front ? (waiting ? "waiting" : "working") : "todo";
  }
  const box = el("grid-box");
  if (playing && (at < box.scrollLeft || (at > box.scrollLeft + box.clientWidth * 0.7 && at < Infinity))) box.scrollLeft = at - MARGIN;
}

let pointedCell; // the key of the step under the pointer
function pointedClass(key) {
  if (!pointedCell) return "";
  const [layer, direction, step] = pointedCell.split(" ").map(Number), [l, d, s] = key.split(" ").map(Number);
  const read = (cells.get(pointedCell)?.events ?? []).some((event) => event.reads.some((one) => keyOf(one) === key));
  const same = directions === 1 ? frontOf(layer, step) === frontOf(l, s) : key === pointedCell;
  return (read ? " reads" : "") + (same && d === direction ? " front" : "");
}

// ---- the timeline: pages of the record, as wide as the window -------------------------------------------------------
let page, scale, left; // the part that is shown, [from, to]; time -> x; where bars begin
const middleOf = (block) => AXIS + block * ROW + ROW / 2;

// The next number of 1, 2, 5, 10, 20, ...
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((digit) => digit * power >= value * 0.999) * power;
}

function drawLanes() {
  const picture = el("lanes"), width = el("lanes-box").clientWidth, wide = width > 700;
  const longest = Math.max(...blocks.map((block, n) => (wide ? block.name : shortName(n)).length));
  left = Math.min(longest * 7.3 + 16, width * 0.4);
  const [from, to] = page;
  scale = (time) => left + ((time - from) / (to - from)) * (width - left - 8);
  const height = AXIS + blocks.length * ROW;
  picture.replaceChildren(definitions());
  picture.setAttribute("width", width);
  picture.setAttribute("height", height + 4);
  const every = roundUp((to - from) / Math.max(2, Math.min(8, (width - left) / 120)));
  for (let time = begin + Math.ceil((from - begin) / every) * every; time <= to; time += every) {
    const x = scale(time), anchor = x - left < 30 ? "start" : width - x < 50 ? "end" : "middle";
    picture.append(svg("text", { x, y: 15, class: "muted", "text-anchor": anchor }, [span(time - begin)]),
      svg("line", { x1: x, x2: x, y1: AXIS - 6, y2: height, class: "lane-line" }));
  }
  blocks.forEach((block, n) => {
    const y = AXIS + n * ROW, label = wide ? block.name : shortName(n);
    const lane = svg("g", { class: "lane", "data-block": n }, [svg("rect", { x: 0, y, width, height: ROW, class: "lane-back" }),
      svg("text", { x: 4, y: y + ROW / 2, "dominant-baseline": "central" }, [label])]);
    for (const event of lanes[n]) {
      if (event.end < from || event.start > to) continue;
      const x = scale(Math.max(event.start, from)), until = scale(Math.min(event.end, to));
      lane.append(svg("rect", { x, y: y + 3, width: Math.max(0.5, until - x), height: ROW - 6, rx: 2,
        class: `bar ${kindOf(event)}`, "data-event": event.number }));
    }
    picture.append(lane);
  });
  picture.append(svg("rect", { id: "veil", y: AXIS, height: height - AXIS }), svg("g", { id: "arrows" }),
    svg("g", { id: "pointed-arrows" }), svg("line", { id: "playhead", y1: AXIS - 8, y2: height }));
}

function arrows(event, x, name, time) {
  return lacks(event, time).filter((one) => one.block !== undefined && one.block !== event.block).map((one) => {
    const from = middleOf(event.block), to = middleOf(one.block), size = Math.min(40, 10 + Math.abs(to - from) / 3);
    const side = x + size > scale(page[1]) ? -1 : 1, bend = x + side * size; // to the left where the right has no room
    return svg("path", { class: name, d: `M${x} ${from} C${bend} ${from} ${bend} ${to} ${x + 2 * side} ${to}` });
  });
}

function updateLanes() {
  const x = scale(now), edge = scale(page[1]);
  el("playhead").setAttribute("x1", x);
  el("playhead").setAttribute("x2", x);
  el("veil").setAttribute("x", x);
  el("veil").setAttribute("width", Math.max(0, edge - x));
  const waits = blocks.map((_, n) => doing(n, now)).filter((event) => event?.kind === "wait");
  el("arrows").replaceChildren(...waits.flatMap((event) => arrows(event, x, "arrow", now)));
  for (const lane of el("lanes").querySelectorAll(".lane")) lane.classList.toggle("selected", Number(lane.dataset.block) === selected);
}

// ---- the text of this moment ---------------------------------------------------------------------------------------
let selected = 0;
const nowButtons = blocks.map((_, n) => {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", tabIndex: -1, onclick: () => { selected = n; show(); } });
  button.append(document.createElement("i"), document.createElement("span"));
  el("now").append(document.createElement("li"));
  el("now").lastChild.append(button);
  return button;
});

function updateNow() {
  nowButtons.forEach((button, n) => {
    const event = doing(n, now), words = `${shortName(n)} ${told(n, now)}`;
    button.firstChild.className = `swatch ${event ? kindOf(event) : "idle"}`;
    if (button.lastChild.textContent !== words) button.lastChild.textContent = words;
    button.setAttribute("aria-pressed", n === selected);
  });
  if (!playing) el("chosen").textContent = `${blocks[selected].name} ${told(selected, now)}`;
  el("clock").textContent = `${span(now - begin)} of ${span(end - begin)}`;
  el("slider").value = lastUpTo(moments, now);
  el("slider").setAttribute("aria-valuetext", el("clock").textContent);
}

// ---- playing -------------------------------------------------------------------------------------------------------
let now = begin, playing = false, before;

function show() {
  const size = (end - begin || 1) / Number(el("zoom").value);
  const from = begin + Math.min(Math.floor((now - begin) / size), Number(el("zoom").value) - 1) * size;
  if (!page || page[0] !== from || page[1] !== from + size) {
    page = [from, from + size];
    drawLanes();
  }
  updateGrid();
  updateLanes();
  updateNow();
}

function seek(time) {
  now = Math.max(begin, Math.min(end, time));
  show();
}

function move(count) {
  const at = lastUpTo(moments, now), exact = moments[at] === now;
  play(false);
  seek(moments[Math.max(0, Math.min(moments.length - 1, at + count + (count < 0 && !exact ? 1 : 0)))]);
}

function play(on) {
  playing = on;
  el("play").textContent = on ? "❙❙ Pause" : "▶ Play";
  if (!on) return show();
  if (now >= end) now = begin;
  before = undefined;
  requestAnimationFrame(frame);
}

function frame(time) {
  if (!playing) return;
  const speed = ((end - begin) / SECONDS / 1000) * Number(el("speed").value);
  seek(now + (before === undefined ? 0 : Math.min(time - before, 200)) * speed);
  before = time;
  if (now >= end) play(false); else requestAnimationFrame(frame);
}

// ---- mouse and keyboard --------------------------------------------------------------------------------------------
const KEYS = {
  " ": () => play(!playing), ArrowLeft: (many) => move(-many), ArrowRight: (many) => move(many),
  Home: () => { play(false); seek(begin); }, End: () => { play(false); seek(end); },
  ArrowUp: () => { selected = Math.max(0, selected - 1); show(); },
  ArrowDown: () => { selected = Math.min(blocks.length - 1, selected + 1); show(); },
};
document.addEventListener("keydown", (event) => {
  const tag = event.target.tagName, act = KEYS[event.key];
  if (!act || event.ctrlKey || event.altKey || event.metaKey || tag === "SELECT") return;
  if (event.key === " " && tag === "BUTTON" && event.target.id !== "play") return; // the button's own
  event.preventDefault();
  act(event.shiftKey ? 10 : 1);
});
el("play").addEventListener("click", () => play(!playing));
el("play").addEventListener("keyup", (event) => { if (event.key === " ") event.preventDefault(); }); // keydown has done it
el("back").addEventListener("click", () => move(-1));
el("forward").addEventListener("click", () => move(1));
el("slider").addEventListener("input", (event) => {
  const time = moments[Number(event.target.value)]; // read before anything is shown, which sets it
  play(false);
  seek(time);
});
el("zoom").addEventListener("change", show);

el("grid").addEventListener("pointerover", (event) => {
  pointedCell = event.target.closest("[data-cell]")?.dataset.cell;
  updateGrid();
  if (!pointedCell) return;
  const [layer, direction, step] = pointedCell.split(" ").map(Number);
  const reads = cells.get(pointedCell)?.events.find((one) => one.reads.length)?.reads ?? [];
  el("cell").textContent = `${place({ layer, direction, step })} (time ${timeOf(direction, step)})` +
    (directions === 1 ? `, on anti-diagonal ${frontOf(layer, step)}` : "") +
    (reads.length ? `; it reads ${reads.map(place).join(" and ")}` : "");
});
el("grid").addEventListener("pointerleave", () => { pointedCell = undefined; updateGrid(); });
el("grid").addEventListener("click", (event) => {
  const first = cells.get(event.target.closest("[data-cell]")?.dataset.cell)?.events[0];
  if (first) { selected = first.block; play(false); seek(first.start); }
});
el("lanes").addEventListener("pointerover", (event) => {
  const bar = events[event.target.dataset.event];
  el("pointed-arrows").replaceChildren(...(bar?.kind === "wait" ? arrows(bar, scale(Math.min(bar.end, page[1])), "arrow pointed") : []));
  if (bar) el("pointed").textContent = `${blocks[bar.block].name} ${sentence(bar)}`;
});
el("lanes").addEventListener("click", (event) => {
  const lane = event.target.closest(".lane"), x = event.clientX - el("lanes").getBoundingClientRect().left;
  if (!lane) return;
  selected = Number(lane.dataset.block);
  play(false);
  const width = scale(page[1]) - left;
  if (x >= left) seek(page[0] + ((x - left) / width) * (page[1] - page[0])); else show();
});

// ---- the beginning -------------------------------------------------------------------------------------------------
function setTheme(name) {
  document.documentElement.dataset.theme = name;
}
const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
el("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

const MEANINGS = { load: "loads weights", "wait-own": "waits for its own layer", "wait-other": "waits for another layer",
  multiply: "multiplies", publish: "cell's equations, publishes" };
const kinds = new Set(events.map(kindOf));
for (const [kind, meaning] of Object.entries(MEANINGS).filter(([kind]) => kinds.has(kind))) {
  const item = document.createElement("li"), swatch = document.createElement("i");
  swatch.className = `swatch ${kind}`;
  item.append(swatch, meaning);
  el("legend").append(item);
}
let shown = 1; // the part of the record that the timeline shows at first: not too many bars
while (events.length / shown > BARS) shown *= 2;
for (let zoom = 1; zoom <= Math.max(16, 8 * shown); zoom *= 2) {
  el("zoom").add(new Option(zoom === 1 ? "the whole record" : `1 / ${zoom} of it`, zoom, false, zoom === shown));
}
el("slider").max = moments.length - 1;
for (const [id, value] of [["layers", layers], ["steps", steps], ["fronts", layers + steps - 1]]) el(`count-${id}`).textContent = value;
el("grid").setAttribute("aria-label", `${layers} layers and ${steps} steps; the text below says what happens at each moment`);
el("lanes").setAttribute("aria-label", `what each of ${blocks.length} blocks does; the text below says it for each moment`);
drawGrid();
new ResizeObserver(() => { page = undefined; drawGrid(); show(); }).observe(el("lanes-box"));
show();
})();
