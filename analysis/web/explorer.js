// DATA: study, gpu (whether there was one), metrics, methods, rows, estimates, reported, timelines,
// lines, specs (see analysis/explorer/__main__.py). Everything that is drawn comes from it; nothing
// is fetched.
const DATA = JSON.parse(document.getElementById("data").textContent);
const ALL = "*";
const CARD = "gpu";
const NOT_RUN = "not run"; // a row's status
const $ = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const methodOf = new Map(DATA.methods.map((method) => [method.key, method]));
const metricOf = new Map(DATA.metrics.map((metric) => [metric.key, metric]));
const ACTIVITY = DATA.lines.filter((line) => line.panel === DATA.lines[0].panel);
let views = {};
let drawn = { rows: [], series: [] };
let open = null;

// -- controls --------------------------------------------------------------------------------

function option(value, text, disabled = false) {
  const element = new Option(text, value);
  element.disabled = disabled;
  return element;
}

function measured(metric) {
  return DATA.rows.some((row) => [row.values[metric]].flat().some((value) => value !== null));
}

function fillControls() {
  const nothing = !DATA.metrics.some((metric) => measured(metric.key));
  for (const metric of DATA.metrics) {
    const there = nothing || measured(metric.key);
    $("metric").append(option(metric.key, metric.label + (there ? "" : " (not measured)"), !there));
  }
  const workloads = unique(DATA.rows.map((row) => row.workload));
  if (workloads.length > 1) $("workload").append(option(ALL, "all workloads, side by side"));
  workloads.forEach((name) => $("workload").append(option(name, name)));
  const completed = (name) =>
    DATA.rows.filter((row) => row.workload === name && row.status === "completed").length;
  $("workload").value = [...workloads].sort((a, b) => completed(b) - completed(a))[0] ?? "";
  for (const key of ["hardware", "arm"]) {
    unique(DATA.rows.map((row) => row[key])).forEach((name) => $(key).append(option(name, name)));
  }
  $("hardware-label").hidden = $("hardware").options.length < 2;
  for (const method of DATA.methods) {
    $("methods").lastElementChild.append(checkbox("method", method.key, method.label, swatch(method)));
  }
  for (const n of unique(DATA.rows.map((row) => row.n)).sort((a, b) => a - b)) {
    $("counts").lastElementChild.append(checkbox("count", n, String(n)));
  }
  $("reported").checked = DATA.reported.length > 0;
  $("extra").hidden = DATA.reported.length === 0;
}

function checkbox(name, value, text, picture = null) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  Object.assign(input, { type: "checkbox", name, value, checked: true });
  label.append(input, ...(picture ? [picture] : []), text);
  return label;
}

// A method's mark as the chart draws it.
function swatch(method) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  for (const [key, value] of [["viewBox", "-8 -8 16 16"], ["width", 16], ["height", 16]]) {
    svg.setAttribute(key, value);
  }
  svg.setAttribute("class", "swatch");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shapePath(method.shape, 6));
  path.setAttribute("fill", method.colour);
  path.setAttribute("stroke", "#222");
  svg.append(path);
  return svg;
}

function shapePath(shape, r) {
  const known = {
    circle: `M${-r},0A${r},${r} 0 1 0 ${r},0A${r},${r} 0 1 0 ${-r},0Z`,
    square: `M${-r},${-r}H${r}V${r}H${-r}Z`,
    diamond: `M0,${-r}L${r},0L0,${r}L${-r},0Z`,
    "triangle-up": `M0,${-r}L${r},${r}H${-r}Z`,
    "triangle-down": `M0,${r}L${r},${-r}H${-r}Z`,
    "triangle-left": `M${-r},0L${r},${r}V${-r}Z`,
    "triangle-right": `M${r},0L${-r},${r}V${-r}Z`,
    cross: `M-2,${-r}H2V-2H${r}V2H2V${r}H-2V2H${-r}V-2H-2Z`,
  };
  return known[shape] ?? shape.replace(/-?[\d.]+/g, (number) => String(r * Number(number)));
}

function checked(name) {
  const inputs = document.querySelectorAll(`input[name="${name}"]:checked`);
  return new Set([...inputs].map((input) => input.value));
}

function choice() {
  const state = { methods: checked("method"), counts: checked("count") };
  for (const key of ["metric", "workload", "hardware", "arm"]) state[key] = $(key).value;
  return { ...state, reported: $("reported").checked };
}

// -- what is shown -----------------------------------------------------------------------------

function shown(state) {
  return DATA.rows.filter(
    (row) =>
      row.hardware === state.hardware &&
      row.arm === state.arm &&
      (state.workload === ALL || row.workload === state.workload) &&
      state.methods.has(row.method) &&
      state.counts.has(String(row.n)),
  );
}

function number(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(Number(value.toPrecision(4)));
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// Where members of a mix have values of their own, each of its workloads has a place.
function placeOf(metric, row, member) {
  return metric.member && row.family.includes("+") ? `${row.place}: ${member}` : row.place;
}

const keyOf = (...parts) => parts.join("\n");

// Workload, place and method → what the replicates come to.
function estimatesOf(state, metric) {
  const found = new Map();
  for (const each of DATA.estimates) {
    if (each.metric !== metric.key || each.hardware !== state.hardware || each.arm !== state.arm) continue;
    const row = { place: each.place, family: each.workload.replace(" + ", "+") };
    found.set(keyOf(each.workload, placeOf(metric, row, each.member), each.method), each);
  }
  return found;
}

// `geometric mean of 3 replicates: 1.77, 95 % interval 1.6 to 1.9`, as a line of the hover.
function summary(metric, estimate) {
  if (!estimate) return {};
  const name = `${metric.ratio ? "geometric mean" : "median"} of ${counted(estimate.replicates, "replicate")}`;
  const interval = estimate.low === null ? "no interval" : `95 % interval ${number(estimate.low)} to ${number(estimate.high)}`;
  return { [name]: `${number(estimate.mean)}, ${interval}` };
}

function chartRows(state) {
  const metric = metricOf.get(state.metric);
  const cells = shown(state);
  const estimates = estimatesOf(state, metric);
  const rows = [];
  const there = new Map(); // where points are → how many, and the signs of their flags
  for (const row of cells) {
    const { id: cell, method, window } = row;
    const base = { method, label: methodOf.get(method).label, facet: row.workload, cell, window };
    const values = [row.values[metric.key]].flat();
    const points = values.map((value, i) => [value, row.members[i], i]).filter(([v]) => v !== null);
    points.forEach(([value, member, i]) => {
      const place = placeOf(metric, row, member);
      const key = keyOf(row.workload, place, method);
      const known = there.get(key) ?? { points: 0, marks: [] };
      there.set(key, { points: known.points + 1, marks: unique([...known.marks, ...row.marks]) });
      const who = metric.member ? { member: `${i}: ${member}` } : {};
      const told = { cell: row.id, ...who, [metric.label]: `${number(value)} ${metric.unit}` };
      const said = `cell ${row.id}: ${number(value)} ${metric.unit}`;
      const hover = tip(row, { ...told, ...summary(metric, estimates.get(key)) });
      rows.push({ ...base, kind: "point", place, from: row.place, value, said, tip: hover });
    });
    if (!points.length) {
      const text = row.status === "completed" ? row.why || "not measured" : row.status;
      const said = `cell ${row.id}: ${text}`;
      rows.push({ ...base, kind: "hole", place: row.place, text, said, tip: tip(row, { cell: row.id }) });
    }
  }
  for (const [key, known] of there) {
    if (estimates.has(key)) rows.push(...meanRows(metric, key, estimates.get(key), known));
  }
  if (metric.reference !== null && cells.length) {
    for (const facet of unique(cells.map((row) => row.workload))) {
      rows.push({ kind: "reference", facet, value: metric.reference });
    }
  }
  if (state.reported && state.arm === "faithful") rows.push(...reportedRows(state, metric, cells));
  return { rows: once(rows), cells, metric };
}

// Mean, interval and signs of what stands in one place.
function meanRows(metric, key, estimate, known) {
  const [facet, place, method] = key.split("\n");
  const base = { place, method, label: methodOf.get(method).label, facet };
  const { mean: value, low, high } = estimate;
  const rows = [];
  if (known.points > 1) {
    const what = metric.ratio ? "geometric mean" : "median";
    const told = summary(metric, estimate);
    const said = `${what}: ${number(value)} ${metric.unit}`;
    rows.push({ ...base, kind: "mean", value, said, tip: told, what });
  }
  if (low !== null) rows.push({ ...base, kind: "interval", low, high });
  if (known.marks.length) rows.push({ ...base, kind: "flag", value, marks: known.marks.join("") });
  return rows;
}

// Replicates that did not run stand in one place: one word for each status there, and none that
// some were not run where others were measured.
function once(rows) {
  const seen = new Set();
  const at = (row) => keyOf(row.facet, row.from ?? row.place, row.method);
  const there = new Set(rows.filter((row) => row.kind === "point").map(at));
  return rows.filter((row) => {
    if (row.kind !== "hole") return true;
    if (row.text === NOT_RUN && there.has(at(row))) return false;
    const key = keyOf(at(row), row.text);
    return !seen.has(key) && seen.add(key);
  });
}

function reportedRows(state, metric, cells) {
  const places = new Set(cells.map((row) => keyOf(row.workload, row.place)));
  return DATA.reported
    .filter((row) => row.metric === metric.key && state.methods.has(row.method))
    .filter((row) => places.has(keyOf(row.workload, row.place)))
    .map((row) => ({
      kind: "reported",
      place: row.place,
      method: row.method,
      label: methodOf.get(row.method).label,
      facet: row.workload,
      value: row.value,
      source: row.source,
      said: `reported by the paper: ${number(row.value)} ${metric.unit}`,
      tip: { reported: `${number(row.value)} ${metric.unit}`, by: row.source, method: row.method },
    }));
}

// What the hover tells of a cell.
function tip(row, title) {
  return {
    ...title,
    method: methodOf.get(row.method).label,
    replicate: String(row.replicate),
    status: row.status,
    ...(row.why ? { why: row.why } : {}),
    ...(row.flags.length ? { flags: row.flags.join("; ") } : {}),
    ...(row.baseline ? { baseline: "progress is taken against this cell" } : {}),
    ...row.about,
    click: DATA.timelines[row.id] ? "what the GPU did over time" : ["details", ...unread()].join("; "),
  };
}

// What is said of a cell without readings: without a GPU there is nothing to miss.
const unread = () => (DATA.gpu ? ["no readings of the GPU"] : []);

function formatTooltip(value, sanitize) {
  const lines = Object.entries(value.tip ?? value).map(
    ([key, text]) => `<tr><td>${sanitize(key)}</td><td>${sanitize(text)}</td></tr>`,
  );
  return `<table>${lines.join("")}</table>`;
}

// -- drawing -----------------------------------------------------------------------------------

// What begins with @ in a spec stands for one of the values; a list of one such for a whole list.
function filled(spec, values) {
  const lists = new Set(Object.values(values).filter(Array.isArray));
  return JSON.parse(JSON.stringify(spec), (_, value) => {
    if (Array.isArray(value) && value.length === 1 && lists.has(value[0])) return value[0];
    return typeof value === "string" && value.startsWith("@") ? values[value.slice(1)] : value;
  });
}

let drawing = Promise.resolve();

// One after the other: a slow drawing must not replace a later one.
function embed(id, spec) {
  drawing = drawing.then(async () => {
    views[id]?.finalize();
    const options = { renderer: "svg", actions: false, ast: false, tooltip: { formatTooltip } };
    views[id] = (await vegaEmbed(`#${id}`, spec, options)).view;
  });
  return drawing;
}

// A chart of one workload. A layer without rows would have no scale, so it is dropped.
function panel(rows, values, title, size) {
  const here = values.methods.filter((label) => rows.some((row) => row.label === label));
  const spec = filled(DATA.specs.cells, { ...values, here });
  const kinds = new Set(rows.map((row) => row.kind));
  const layer = spec.layer.filter((each) => kinds.has(each.description));
  if (size.height < 300) for (const each of layer) if (each.description === "hole") each.mark.fontSize = 9;
  return { layer, title: { text: title, fontSize: 12, limit: size.width }, data: { values: rows }, ...size };
}

function draw() {
  const state = choice();
  const { rows, cells, metric } = chartRows(state);
  drawn = { rows, cells, metric, state };
  const holes = cells.filter((row) => row.status !== "completed").length;
  const points = rows.filter((row) => row.kind === "point").length;
  $("says").textContent = metric.says;
  $("status").textContent = cells.length
    ? `${counted(cells.length, "cell")} shown, ${counted(points, "point")}; ${counted(holes, "cell")} without a result.`
    : "No cell is chosen: tick a method and a number of jobs.";
  table(cells, metric);
  $("chart").hidden = cells.length === 0;
  $("save-svg").disabled = $("save-csv").disabled = cells.length === 0;
  if (!cells.length) return drawing;
  const methods = DATA.methods.filter((method) => rows.some((row) => row.method === method.key));
  const values = {
    metric: metric.unit,
    places: unique([...DATA.places, ...rows.map((row) => row.place)]).filter(Boolean),
    methods: methods.map((method) => method.label),
    colours: methods.map((method) => method.colour),
    shapes: methods.map((method) => method.shape),
  };
  const workloads = unique(cells.map((row) => row.workload));
  const width = $("chart").clientWidth - 80;
  const several = workloads.length > 1;
  const size = several ? { width: Math.floor(width / 2 - 50), height: 210 } : { width, height: 380 };
  const { config, $schema } = DATA.specs.cells;
  const columns = Math.max(1, Math.floor(width / 165));
  const told = rows.some((row) => row.kind === "reported") ? ["grey diamonds: reported by the paper"] : [];
  const spec = {
    $schema,
    config: { ...config, legend: { ...config.legend, columns } },
    title: { text: metric.label, subtitle: [...subtitle(state, cells), ...told] },
    columns: several ? 2 : 1,
    resolve: { scale: { xOffset: "independent" } },
    concat: workloads.map((name) => panel(rows.filter((row) => row.facet === name), values, name, size)),
  };
  return embed("chart", spec).then(() =>
    views.chart.addEventListener("click", (_, item) => {
      const cell = item?.datum?.cell;
      if (cell) show(cell);
    }),
  );
}

// Lines that an exported picture carries with it: what was measured, and on which data.
function subtitle(state, cells) {
  const bySource = new Map();
  for (const pair of unique(cells.flatMap((row) => row.about.data?.split(", ") ?? [])).sort()) {
    const [name, source] = pair.split(": ");
    bySource.set(source, [...(bySource.get(source) ?? []), name]);
  }
  const about = [`study ${DATA.study}`, state.hardware, `arm ${state.arm}`].filter(Boolean);
  return [about.join("; "), ...[...bySource].map(([source, names]) => `${source} data: ${names.join(", ")}`)];
}

// The same for those who do not point: a line per cell, with a button for its timeline.
function table(cells, metric) {
  const columns = {
    cell: (cell) => cell.id,
    method: (cell) => methodOf.get(cell.method).label,
    jobs: (cell) => cell.n,
    window: (cell) => (cell.window === "window" ? "" : cell.window ?? ""),
    status: (cell) => (cell.why && cell.status !== "completed" ? `${cell.status}: ${cell.why}` : cell.status),
    [`${metric.label} (${metric.unit})`]: (cell) => [cell.values[metric.key]].flat().map(number).filter(Boolean).join(", "),
    flags: (cell) => cell.flags.join("; "),
  };
  const used = Object.entries(columns).filter(([, text]) => cells.some((cell) => text(cell) !== ""));
  const place = document.createElement("table");
  const head = place.createTHead().insertRow();
  for (const title of [...used.map(([title]) => title), "over time"]) {
    head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: title }));
  }
  const body = place.createTBody();
  for (const cell of cells) {
    const line = body.insertRow();
    line.classList.toggle("chosen", cell.id === open);
    for (const [, text] of used) line.insertCell().textContent = text(cell);
    const textContent = DATA.timelines[cell.id] ? "timeline" : "details";
    const button = Object.assign(document.createElement("button"), { type: "button", textContent });
    button.dataset.cell = cell.id;
    button.setAttribute("aria-label", `${textContent} of ${cell.id}`);
    line.insertCell().append(button);
  }
  $("cells").replaceChildren(place);
}

// -- timeline ------------------------------------------------------------------------------------

function show(id) {
  open = id;
  const row = DATA.rows.find((found) => found.id === id);
  const timeline = DATA.timelines[id];
  $("timeline").hidden = false;
  $("timeline-title").textContent = `${timeline ? "What the GPU did" : "Details"}: ${id}`;
  const about = Object.entries(row.about).map(([key, text]) => `${key} ${text}`);
  const status = row.why ? `${row.status}: ${row.why}` : row.status;
  const bin = timeline ? [`each point the mean of ${number(timeline.bin)} s`] : unread();
  $("timeline-text").textContent = [status, ...row.flags, ...bin, ...about].join("; ");
  const entities = timeline ? Object.keys(timeline.entities) : [];
  const called = (name) => (name === CARD ? "the whole card" : name.replace("gi:", "GPU instance "));
  $("entity").replaceChildren(...entities.map((name) => option(name, called(name))));
  const active = (name) => ACTIVITY.some((line) => timeline.entities[name][line.key]);
  $("entity").value = entities.find(active) ?? entities[0] ?? "";
  $("entity-label").hidden = entities.length < 2;
  for (const element of document.querySelectorAll("#cells tr")) {
    element.classList.toggle("chosen", element.querySelector("button")?.dataset.cell === id);
  }
  return drawTimeline().then(() => {
    $("timeline").scrollIntoView({ block: "nearest" });
    $("timeline-title").focus({ preventScroll: true });
  });
}

function drawTimeline() {
  const timeline = DATA.timelines[open];
  // Of an instance of MIG only its activity is known: all else is the card's.
  const lines = { ...timeline?.entities[CARD], ...timeline?.entities[$("entity").value] };
  const series = DATA.lines.flatMap((line) =>
    (lines[line.key] ?? []).map((steps, i) => ({
      panel: line.panel,
      line: line.label,
      t: Number((timeline.t0 + (i + 0.5) * timeline.bin).toFixed(3)),
      value: steps === null ? null : Number((steps * line.step).toPrecision(6)),
    })),
  );
  drawn.series = series;
  const empty = series.length === 0;
  for (const id of ["save-timeline-svg", "save-timeline-csv"]) $(id).hidden = empty;
  $("timeline-chart").hidden = empty;
  if (empty) return drawing;
  const span = timeline.phases.map(([phase, start, end], i) => ({
    phase,
    start,
    end,
    middle: (start + end) / 2,
    shade: ["window", "before", "after", "epochs"].includes(phase) ? "#e3edf7" : i % 2 ? "#f5f5f5" : "#fbfbfb",
  }));
  const spec = filled(DATA.specs.timeline, {
    lines: ACTIVITY.filter((line) => lines[line.key]).map((line) => line.label),
  });
  const there = new Set(series.map((row) => row.panel));
  spec.vconcat = spec.vconcat.filter((panel) => there.has(panel.description));
  const width = Math.max(320, $("timeline-chart").clientWidth - 110);
  for (const panel of spec.vconcat) panel.width = width;
  const chosen = $("entity").selectedOptions[0];
  const part = chosen.value === CARD ? chosen.text : `activity of ${chosen.text}, all else of the whole card`;
  spec.title = { text: open, subtitle: `study ${DATA.study}; ${part}; time in s, 0 when the window opened` };
  spec.datasets = { series, phases: span };
  return embed("timeline-chart", spec);
}

// -- export --------------------------------------------------------------------------------------

function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name.replace(/[^\w.+-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv(columns, rows) {
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((c) => row[c]))].map((r) => r.map(quoted).join(",")).join("\n") + "\n";
}

function saveCsv() {
  const { rows, metric, state } = drawn;
  const cells = new Map(DATA.rows.map((row) => [keyOf(row.id, row.window), row]));
  const columns = ["kind", "study", "workload", "place", "method", "arm", "cell", "replicate", "window"];
  columns.push("metric", "unit", "value", "low", "high", "status", "why", "flags");
  columns.push(...["GPU", "driver", "CPU"].filter((name) => DATA.rows.some((row) => row.about[name])));
  columns.push("data", "telemetry", "torch", "started", "sitting", "source");
  const told = { study: DATA.study, metric: metric.key, unit: metric.unit, arm: state.arm };
  const bounds = new Map();
  for (const row of rows) if (row.kind === "interval") bounds.set(keyOf(row.facet, row.place, row.method), row);
  const lines = rows
    .filter((row) => ["point", "hole", "mean", "reported"].includes(row.kind))
    .map((row) => {
      const cell = cells.get(keyOf(row.cell, row.window));
      const own = cell ? { ...cell.about, ...cell, flags: cell.flags.join("; "), cell: cell.id } : {};
      const kind = { point: "replicate", hole: "no value", mean: row.what, reported: "reported" }[row.kind];
      const bound = row.kind === "mean" ? bounds.get(keyOf(row.facet, row.place, row.method)) : null;
      const { low, high } = bound ?? {};
      const { place, method, value, source } = row;
      const arm = row.kind === "reported" ? "" : told.arm;
      return { ...own, ...told, arm, workload: row.facet, place, method, value, low, high, source, kind };
    });
  save(`${DATA.study}-${metric.key}.csv`, "text/csv", csv(columns, lines));
}

async function saveSvg(id, name) {
  await drawing;
  save(name, "image/svg+xml", await views[id].toSVG());
}

// -- start ---------------------------------------------------------------------------------------

fillControls();
$("controls").addEventListener("change", draw);
$("controls").addEventListener("submit", (event) => event.preventDefault());
$("cells").addEventListener("click", (event) => {
  const cell = event.target.closest("button")?.dataset.cell;
  if (cell) show(cell);
});
$("entity").addEventListener("change", drawTimeline);
$("close").addEventListener("click", () => {
  $("timeline").hidden = true;
  open = null;
  draw();
});
$("save-csv").addEventListener("click", saveCsv);
$("save-svg").addEventListener("click", () => saveSvg("chart", `${DATA.study}-${drawn.metric.key}.svg`));
$("save-timeline-svg").addEventListener("click", () => saveSvg("timeline-chart", `${open}.svg`));
$("save-timeline-csv").addEventListener("click", () =>
  save(`${open}.csv`, "text/csv", csv(["panel", "line", "t", "value"], drawn.series)),
);
let width = innerWidth;
let resizing = 0;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(resizing);
  resizing = setTimeout(() => draw().then(() => open && drawTimeline()), 200);
});
draw();
