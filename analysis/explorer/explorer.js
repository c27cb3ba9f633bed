"use strict";
// Draws what the page holds: it chooses, sorts and places numbers, and computes none.
const held = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const WANTS = {
  rate: ["throughput", "", ""],
  slowdown: ["no job slower than", 2, "times"],
  memory: ["at most", 80, "GB in use"],
};
const OF_WANT = { slowdown: "slowdown_worst", memory: "memory" };
const SHORT = { rate: "samples/s", stp: "STP", s: "S", over_fastest: "over fastest", gract: "GRACT",
  slowdown_worst: "slowdown", memory: "memory", energy_per_sample: "J/sample" };
const LESS = new Set(["slowdown_worst", "memory", "n"]); // sorted upwards
const DEFAULTS = { job: "", arm: "", want: "rate", bound: "", y: "rate", sort: "", set: "" };
let state = DEFAULTS;

// Text goes in as text, never as markup.
const SVG = new Set(["svg", "g", "path", "line", "text", "circle"]);
function el(tag, attributes = {}, ...inside) {
  const made = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  made.append(...inside.flat().filter((each) => each !== null && each !== ""));
  return made;
}

// -- what is chosen ---------------------------------------------------------------------------

const key = (set) => `${set.scenario}/${set.arm}/${set.method}`;
const jobNow = () => held.jobs.find((job) => job.id === state.job);
const measured = (job, arm) => job.sets.filter((set) => set.arm === arm && Object.keys(set.numbers).length);
const value = (set, quantity) => set.numbers[quantity]?.value ?? null;
const work = (set) => value(set, set.by) ?? -1;
const bound = () => Number(state.bound) || WANTS[state.want][1];
const short = (set) => set.count + (set.count.includes("+") ? ", " : " × ") + held.methods[set.method].label;
const isAlone = (set) => set.n === 1 && set.method === "naive";

function fits(set) {
  const quantity = OF_WANT[state.want];
  return !quantity || (quantity === "slowdown_worst" ? slowest(set) : value(set, quantity) ?? Infinity) <= bound();
}
// As analysis.advice chooses: the most work, and the least slowdown among those near it.
const option = (set) => set.n > 1 || isAlone(set);
const slowest = (set) => (isAlone(set) ? 1 : value(set, "slowdown_worst") ?? Infinity);
const best = (sets) => sets.filter((set) => option(set) && fits(set)).sort((a, b) => work(b) - work(a) || slowest(a) - slowest(b))[0];
function advised(sets) {
  const top = best(sets);
  return sets.filter((set) => option(set) && fits(set) && work(set) * held.near >= work(top))
    .sort((a, b) => slowest(a) - slowest(b) || work(b) - work(a))[0];
}

function read() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (given[name]) state[name] = given[name];
  settle();
}

function settle() {
  // Unasked, what was measured together is shown.
  const together = (job) => job.arms.find((arm) => measured(job, arm).some((set) => !isAlone(set)));
  if (!jobNow()) state.job = (held.jobs.find(together) ?? held.jobs[0]).id;
  const job = jobNow();
  if (!job.arms.includes(state.arm)) state.arm = together(job) ?? job.arms[0];
  if (!WANTS[state.want]) state.want = "rate";
  if (!(Number(state.bound) > 0)) state.bound = "";
  const sets = measured(job, state.arm);
  if (!sets.some((set) => key(set) === state.set)) state.set = "";
  state.ys = held.chart.filter((quantity) => sets.some((set) => value(set, quantity) !== null));
  if (!state.ys.includes(state.y)) state.y = state.ys[0] ?? "";
}

const address = (to) => `#${new URLSearchParams(Object.keys(DEFAULTS).filter((part) => to[part]).map((part) => [part, to[part]]))}`;
function choose(change) {
  const at = document.activeElement?.dataset?.key;
  state = { ...state, ...change };
  settle();
  try { history.replaceState(null, "", address(state)); } catch { /* a frame without an address */ }
  draw();
  if (at) [...document.querySelectorAll("[data-key]")].find((e) => e.dataset.key === at)?.focus();
}

// -- questions --------------------------------------------------------------------------------

function radio(name, option, label, ...more) {
  const input = el("input", { type: "radio", name, value: option, "data-key": `${name}:${option}`,
    onchange: () => choose({ [name]: option, set: "", ...(name === "want" ? { bound: "" } : {}) }) });
  input.checked = state[name] === option;
  return el("label", {}, input, label, more);
}

function questions() {
  const job = jobNow();
  const fill = (id, options) => $(id).querySelector(".row").replaceChildren(...options);
  fill("jobs", held.jobs.map((each) => radio("job", each.id, each.label)));
  fill("arms", job.arms.map((arm) => radio("arm", arm, held.arms[arm] ?? arm)));
  $("arms").hidden = job.arms.length < 2;
  const sets = measured(job, state.arm);
  fill("wants", Object.keys(WANTS).filter((want) => !OF_WANT[want] || sets.some((set) => set.numbers[OF_WANT[want]])).map((want) => {
    const [label, usual, unit] = WANTS[want];
    if (!usual) return radio("want", want, label);
    const input = el("input", { type: "number", min: 0, step: "any", "aria-label": `${label} … ${unit}`,
      "data-key": `bound:${want}`, value: state.want === want ? bound() : usual,
      onchange: (e) => choose({ want, bound: e.target.value, set: "" }) });
    return radio("want", want, `${label} `, input, ` ${unit}`);
  }));
  for (const chosen of document.querySelectorAll(".row input:checked")) {
    const [label, row] = [chosen.parentNode, chosen.closest(".row")];
    if (row.scrollWidth > row.clientWidth) row.scrollLeft = label.offsetLeft - row.offsetLeft - 40;
  }
  $("y").replaceChildren(...state.ys.map((q) => el("option", { value: q, selected: q === state.y },
    held.quantities[q].title + (held.quantities[q].unit ? `, ${held.quantities[q].unit}` : ""))));
}

// -- advice -----------------------------------------------------------------------------------

const how = (set) => held.methods[set.method].phrase;
const times = (number) => `${number.span.replace(/, \w+ cells?$/, "$&,")} times`;

function sentences(set, job) {
  const { rate, stp, over_fastest: over, slowdown_worst: slow, memory, capacity } = set.numbers;
  const found = [];
  const gained = stp ? `${times(stp)} what one job alone does` : "";
  if (set.n === 1)
    found.push(rate ? `One job alone processes ${rate.span}.` : "");
  else if (rate)
    found.push(`Together they process ${rate.span}${gained ? `: ${gained}` : ""}.`);
  else if (gained) found.push(`Together they do ${gained}, each job counted against itself alone.`);
  if (over && job.fastest && job.fastest.arm !== held.arms[set.arm])
    found.push(`That is ${times(over)} the fastest measured way to run one job alone (${job.fastest.arm}).`);
  if (slow && set.n > 1) found.push(`The slowest job takes ${times(slow)} as long as alone.`);
  if (memory) found.push(`${memory.text}${capacity ? ` of ${capacity.text}` : ""} of GPU memory are in use.`);
  else if (stp?.design) found.push(held.untold);
  return found.filter(Boolean).join(" ");
}

const name = (set) => set.n === 1 && isAlone(set) ? `one ${set.title} at a time` : `${set.title} ${how(set)}`;

function wanted() {
  if (state.want === "rate") return "the least slowdown near the most throughput";
  const [label, , unit] = WANTS[state.want];
  return `the most throughput with ${label} ${bound()} ${unit}`;
}

function advice(sets, job) {
  const top = advised(sets);
  const picked = sets.find((set) => key(set) === state.set);
  const shown = picked ?? top;
  if (!shown) return [el("h2", {}, "No measured set meets this bound"), el("p", {}, `${job.label} has ${sets.length} measured sets; loosen the bound.`)];
  const together = sets.some((set) => set.n > 1);
  const title = picked ? `You chose ${name(shown)}` : together ? `Run ${name(shown)}` : `${job.label} was measured alone only`;
  const words = [el("h2", {}, title), el("p", {}, sentences(shown, job))];
  const said = new Set([shown]);
  const also = (why, set) => {
    if (!set || said.has(set)) return;
    said.add(set);
    const { stp, slowdown_worst: slow, memory } = set.numbers;
    const told = [stp && `${times(stp)} what one job alone does`, slow && `the slowest job takes ${slow.text} times as long as alone`, memory?.text];
    words.push(el("p", {}, `${why}: `, link({ set: set === top ? "" : key(set) }, name(set)), `, ${told.filter(Boolean).join(", ")}.`));
  };
  also(`For ${wanted()}`, top);
  if (together && shown.n === 1) also("The best measured set of several", sets.filter((set) => set.n > 1).sort((a, b) => work(b) - work(a))[0]);
  if (!picked) also("The most throughput, with more slowdown", best(sets));
  if (state.want === "rate" && slowest(shown) > 2) also("With no job slower than 2 times", advised(sets.filter((set) => slowest(set) <= 2)));
  const { rewrite } = top ?? shown;
  if (rewrite) words.push(el("p", {}, `${rewrite}: as ${job.fastest.arm}, one job alone does ${job.fastest.span}.`));
  const flags = shown.numbers.rate?.flags ?? shown.numbers.stp?.flags;
  if (flags) words.push(el("p", { class: "soft" }, `Marked in the measurement: ${flags}.`));
  return words;
}

function link(change, label) {
  return el("a", { href: address({ ...state, set: "", ...change }), onclick: (e) => { e.preventDefault(); choose({ set: "", ...change }); } }, label);
}

// -- tables -----------------------------------------------------------------------------------

function cell(set, quantity) {
  const number = set.numbers[quantity];
  const short = SHORT[quantity];
  if (!number) return el("td", { class: "none", "data-short": short }, "–");
  const unit = held.quantities[quantity].unit;
  const text = quantity === "memory" ? number.text : number.text.replace(` ${unit}`, "");
  return el("td", { "data-short": short }, el("button", { class: "num", type: "button", tabindex: -1,
    "data-number": number.id, "data-key": number.id, onclick: () => explain(set, quantity) },
  text, el("small", {}, number.spread)));
}

const titled = (quantity) => held.quantities[quantity].title + (quantity === "rate" ? ", samples/s" : "");
const plain = (title) => el("th", { scope: "col" }, title);
function grid(heads, rows) {
  const table = el("table", { onkeydown: (e) => walk(e, table) }, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
  table.querySelector("tbody button")?.setAttribute("tabindex", 0);
  return table;
}

function options(sets, job) {
  const columns = held.table.filter((quantity) => sets.some((set) => value(set, quantity) !== null));
  const sort = columns.includes(state.sort) || state.sort === "n" ? state.sort : "";
  const at = (set) => (sort === "n" ? set.n : sort ? value(set, sort) : work(set));
  const order = (a, b) => {
    if (!sort && fits(a) !== fits(b)) return fits(a) ? -1 : 1;
    if ((at(a) === null) !== (at(b) === null)) return at(a) === null ? 1 : -1;
    return LESS.has(sort) ? at(a) - at(b) : at(b) - at(a);
  };
  const shown = sets.find((set) => key(set) === state.set) ?? advised(sets);
  const turns = sets.some((set) => set.numbers.stp?.design);
  const head = (quantity, title) => el("th", { scope: "col", "aria-sort": sort === quantity && (LESS.has(sort) ? "ascending" : "descending") },
    el("button", { type: "button", "data-key": `sort:${quantity}`, onclick: () => choose({ sort: sort === quantity ? "" : quantity }) }, title));
  const rows = [...sets].sort(order).map((set) => el("tr", { class: [set === shown && "chosen", !fits(set) && "outside"].filter(Boolean).join(" ") },
    el("th", { scope: "row" }, el("button", { class: "pick", type: "button", tabindex: -1, "data-key": `set:${key(set)}`,
      "aria-pressed": String(key(set) === state.set), onclick: () => choose({ set: key(set) === state.set ? "" : key(set) }) },
    short(set)),
    set === shown && sets.length > 1 ? el("span", { class: "tag" }, key(set) === state.set ? "chosen" : "advised") : ""),
    columns.map((quantity) => cell(set, quantity)), turns ? el("td", { "data-short": "design" }, set.numbers.stp?.design ?? "blocks") : ""));
  const heads = [head("n", job.mixed ? job.parts.join(" + ") : "jobs and method"), ...columns.map((q) => head(q, titled(q)))];
  return [el("h3", {}, `${job.label}, ${held.arms[state.arm]}`), grid([...heads, turns ? plain("design") : ""], rows),
    el("p", {}, "Small print: least to most over hosts, or in [ ] the 95 % interval of one host. "
      + "Choose a row to read it as a sentence, a number to see where it comes from."), missing(job)];
}

function walk(event, table) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || event.target.closest("thead")) return;
  const grid = [...table.tBodies[0].rows].map((row) => [...row.cells].map((each) => each.querySelector("button")));
  const [here] = grid.flatMap((row, r) => row.flatMap((b, c) => (b === event.target ? [[r, c]] : [])));
  for (let [r, c] = [here[0] + step[0], here[1] + step[1]]; grid[r]?.[c] !== undefined; r += step[0], c += step[1])
    if (grid[r][c]) { move(event, grid[r][c], table.tBodies[0]); break; }
}

function move(event, to, within) {
  event.preventDefault();
  for (const each of within.querySelectorAll("[tabindex]")) each.setAttribute("tabindex", -1);
  to.setAttribute("tabindex", 0);
  to.focus();
}

function missing(job) {
  const groups = new Map();
  for (const set of job.sets.filter((each) => each.arm === state.arm && !Object.keys(each.numbers).length)) {
    const status = `${set.status[0].toUpperCase()}${set.status.slice(1)}: `;
    groups.set(status, [...groups.get(status) ?? [], set]);
  }
  return [...groups].map(([status, sets]) => {
    const why = [...new Set(sets.map((set) => set.why).filter(Boolean))];
    return el("div", { class: "missing" }, status + sets.map(short).join(" · ") + ". ",
      why.length ? el("details", {}, el("summary", {}, "Why"), why.map((each) => el("p", {}, each))) : "");
  });
}

function every() {
  const quantities = ["rate", "stp", "s", "slowdown_worst", "memory"]
    .filter((q) => held.jobs.some((job) => job.sets.some((set) => set.numbers[q])));
  const rows = held.jobs.flatMap((job) => job.arms.map((arm) => {
    const sets = measured(job, arm);
    const top = advised(sets);
    return el("tr", {}, el("td", {}, link({ job: job.id, arm }, job.label)), el("td", { "data-short": "written" }, held.arms[arm] ?? arm),
      el("td", { "data-short": "run" }, sets.every(isAlone) ? "sharing not measured" : top ? short(top) : "none meets the bound"),
      top ? quantities.map((q) => cell(top, q)) : quantities.map(() => el("td", { class: "none" }, "–")));
  }));
  return [el("h3", {}, `All jobs: ${wanted()}`), grid([...["job", "written", "run"], ...quantities.map(titled)].map(plain), rows)];
}

// -- chart ------------------------------------------------------------------------------------

const SHAPES = {
  o: "M-4.5,0A4.5,4.5 0 1 1 4.5,0A4.5,4.5 0 1 1 -4.5,0Z", s: "M-4,-4H4V4H-4Z", "<": "M4,-5V5L-5,0Z",
  ">": "M-4,-5V5L5,0Z", "^": "M-5,4H5L0,-5Z", D: "M0,-5.5L5.5,0L0,5.5L-5.5,0Z", p: "M0,-5L5,-1L3,5H-3L-5,-1Z",
  "*": "M-1.5,-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5V-1.5H-1.5Z",
};

function ticks(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  const step = [0.2, 0.5, 1, 2, 5].map((each) => each * power).find((each) => most / each <= 7);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

function chart(sets, job) {
  const quantity = state.y;
  const points = sets.filter((set) => value(set, quantity) !== null);
  if (!points.length) return [];
  const width = Math.max(260, $("chart").clientWidth || 420), height = Math.max(180, Math.min(width * 0.85, innerHeight * 0.62, 380));
  const [left, right, top, bottom] = [46, width - 12, 10, height - 38];
  const level = quantity === "rate" ? job.fastest : null;
  const most = 1.04 * Math.max(...points.map((set) => set.numbers[quantity].high ?? value(set, quantity)), level?.value ?? 0);
  const counts = [...new Map([...points].sort((a, b) => a.n - b.n || a.count.localeCompare(b.count)).map((set) => [set.count, set.n])).entries()];
  const last = Math.max(...points.map((set) => set.n), 2);
  const places = new Map(counts.map(([count, n], i) => [count, job.mixed ? (i + 0.5) / counts.length : (n - 0.6) / (last - 0.2)]));
  const x = (set, shift = 0) => left + places.get(set.count) * (right - left) + shift;
  const y = (number) => bottom - (number / most) * (bottom - top);
  const drawn = el("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${held.quantities[quantity].title} by number of jobs, a line per method` });
  for (const tick of ticks(most))
    drawn.append(el("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      el("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tick >= 1e4 ? `${tick / 1e3}k` : tick.toLocaleString("en")));
  let taken = -99; // labels that would touch the one before are left out
  for (const [count] of counts)
    if (x({ count }) - taken >= (job.mixed ? 34 : 15))
      drawn.append(el("text", { x: taken = x({ count }), y: bottom + 17, "text-anchor": "middle" }, count));
  drawn.append(el("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, job.mixed ? `jobs: ${job.parts.join(" + ")}` : "jobs on the GPU"));
  if (level) drawn.append(el("line", { class: "level", x1: left, x2: right, y1: y(level.value), y2: y(level.value) }));
  const shown = sets.find((set) => key(set) === state.set) ?? advised(sets);
  const methods = Object.keys(held.methods).filter((method) => points.some((set) => set.method === method));
  methods.forEach((method, i) => {
    const { colour, dash, marker } = held.methods[method];
    const own = points.filter((set) => set.method === method).sort((a, b) => a.n - b.n);
    const shift = methods.length > 1 ? (i / (methods.length - 1) - 0.5) * Math.min(12, 3 * methods.length) : 0;
    const group = el("g", { class: "m", style: `--c:${colour}` });
    if (!job.mixed && own.length > 1)
      group.append(el("path", { "stroke-dasharray": dash, d: "M" + own.map((set) => `${x(set, shift)},${y(value(set, quantity))}`).join("L") }));
    for (const set of own) {
      const number = set.numbers[quantity];
      const point = el("g", { class: `point${set === shown ? " chosen" : ""}`, tabindex: -1, role: "button", "data-number": number.id,
        "data-key": `point:${number.id}`, transform: `translate(${x(set, shift)},${y(number.value)})`,
        "aria-label": `${set.title} ${how(set)}: ${number.span}`, onclick: () => choose({ set: key(set) }),
        onpointerenter: () => { hosts(point, number, y); explain(set, quantity); }, onpointerleave: () => hosts(null),
        onfocus: () => { hosts(point, number, y); explain(set, quantity); }, onblur: () => hosts(null),
        onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose({ set: key(set) }); } } });
      if (number.low !== undefined)
        point.append(el("line", { x1: 0, x2: 0, y1: y(number.low) - y(number.value), y2: y(number.high) - y(number.value) }));
      point.append(el("circle", { class: "ring", r: 9 }), el("path", { class: "dot", d: SHAPES[marker] }));
      group.append(point);
    }
    drawn.append(group);
  });
  if (level)
    drawn.append(el("text", { x: left + 0.66 * (right - left), y: y(level.value) - 5, "text-anchor": "middle", class: "note" }, `fastest alone (${level.arm})`));
  drawn.querySelector(".point")?.setAttribute("tabindex", 0);
  drawn.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    const all = [...drawn.querySelectorAll(".point")];
    const to = all[all.indexOf(event.target) + step];
    if (step && to) move(event, to, drawn);
  });
  $("legend").replaceChildren(...methods.map((method) => el("span", {}, el("svg", { width: 30, height: 14, viewBox: "-15 -7 30 14", "aria-hidden": true },
    el("g", { class: "m", style: `--c:${held.methods[method].colour}` }, el("path", { d: "M-15,0H15", "stroke-dasharray": held.methods[method].dash }),
      el("path", { class: "dot", d: SHAPES[held.methods[method].marker] }))), held.methods[method].label)));
  return [drawn];
}

// The points of single hosts, beside the one that has the focus.
function hosts(point, number, y) {
  for (const old of document.querySelectorAll(".host")) old.remove();
  if (point) point.append(...number.on.map(([, at], i) => el("circle", { class: "host", r: 3.2, cx: 13 + 4 * (i % 2), cy: y(at) - y(number.value) })));
}

// -- where a number comes from ----------------------------------------------------------------

function explain(set, quantity) {
  const number = set.numbers[quantity];
  const { title, meaning, over } = held.quantities[quantity];
  const command = `make explain STUDY=${held.folder.split("/").pop()} ID='${number.id}'`;
  const some = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const code = el("code", {}, command);
  const copy = el("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(command); copy.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); copy.textContent = "Selected: press Ctrl+C"; }
  } }, "Copy");
  $("detail").replaceChildren(
    el("button", { class: "close", type: "button", "aria-label": "Close", onclick: close }, "×"),
    el("p", {}, el("b", {}, `${title}: ${number.span}`), ` · ${set.title} ${how(set)}, ${held.arms[set.arm]}`),
    el("p", { class: "soft" }, [meaning, over && `relative to ${over}`].filter(Boolean).join("; ")),
    el("p", {}, `${some(number.n, "replicate")} on ${some(number.hosts, "host")}, ${some(number.cells, "cell")}. `
      + number.on.map(([host, , text]) => `${host}: ${text}`).join(" · ") + (number.flags ? `. Marked: ${number.flags}.` : ""),
      number.design ? ` Design: ${number.design}.` : ""),
    el("p", {}, "id ", el("code", { id: "id" }, number.id)), el("p", {}, code, " ", copy));
  $("detail").hidden = false;
}
const close = () => { $("detail").hidden = true; };

// -- all of it --------------------------------------------------------------------------------

function draw() {
  const job = jobNow();
  const sets = measured(job, state.arm);
  questions();
  $("advice").hidden = !held.advises;
  $("advice").replaceChildren(...(held.advises ? advice(sets, job) : []));
  $("options").replaceChildren(...options(sets, job).flat());
  $("every").replaceChildren(...every());
  $("chart").replaceChildren(...chart(sets, job));
}

$("said").textContent = `Study ${held.study}: ${held.said}`;
if (held.jobs.length) {
  document.querySelector("main").hidden = false;
  read();
  draw();
  $("y").addEventListener("change", (e) => choose({ y: e.target.value }));
  $("ask").addEventListener("submit", (e) => e.preventDefault());
  $("options").addEventListener("focusin", (e) => e.target.dataset.number && e.target.matches(":focus-visible") && e.target.click());
  addEventListener("hashchange", () => { read(); draw(); });
  addEventListener("keydown", (e) => e.key === "Escape" && close());
  let wide = innerWidth;
  addEventListener("resize", () => innerWidth !== wide && (wide = innerWidth, draw()));
} else {
  $("ask").hidden = true;
  $("said").after(el("p", {}, "No set of jobs has completed in this study, so there is nothing to advise yet."));
}
