"use strict";
// Shows what the page holds: it chooses numbers, and computes none.
const held = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const CHOICES = ["job", "implementation", "quantity"];
const state = { job: held.first[0], implementation: held.first[1], quantity: "stp" };
const dark = matchMedia("(prefers-color-scheme: dark)");

const having = (wanted) => held.rows.filter((row) => Object.entries(wanted).every(([name, value]) => row[name] === value));

// What can be chosen: implementations and quantities that were measured of the job, most jobs first.
function options() {
  const shared = (rows) => rows.some((row) => row.jobs > 1);
  const jobs = Object.keys(held.jobs);
  if (!jobs.includes(state.job)) state.job = jobs.find((job) => shared(having({ job }))) ?? jobs[0];
  const implementations = Object.keys(held.implementations).filter((implementation) => having({ job: state.job, implementation }).length);
  if (!implementations.includes(state.implementation)) state.implementation = implementations.find((implementation) => shared(having({ job: state.job, implementation }))) ?? implementations[0];
  const quantities = Object.keys(held.quantities)
    .filter((quantity) => having({ job: state.job, implementation: state.implementation, quantity }).length);
  if (!quantities.includes(state.quantity)) [state.quantity] = quantities;
  return { job: jobs, implementation: implementations, quantity: quantities };
}

function row(each) {
  const made = document.createElement("tr");
  for (const text of [each.count, each.method, each.text, each.of, each.id]) made.insertCell().textContent = text;
  return made;
}

async function draw() {
  const names = { job: held.jobs, implementation: held.implementations, quantity: held.quantities };
  const found = options();
  for (const name of CHOICES)
    $(name).replaceChildren(...found[name].map((value) => new Option(names[name][value], value, false, value === state[name])));
  const rows = having(state);
  rows.sort((a, b) => a.jobs - b.jobs);
  $("advice").textContent = held.advice[`${state.job}/${state.implementation}`] ?? "";
  $("title").textContent = held.quantities[state.quantity];
  $("meaning").textContent = held.meanings[state.quantity];
  document.querySelector("tbody").replaceChildren(...rows.map(row));
  try { history.replaceState(null, "", `#${new URLSearchParams(state)}`); } catch { /* a frame without an address */ }
  const colours = [...new Map(rows.map((each) => [each.method, each.colour])).values()];
  const config = { background: "transparent", range: { category: colours } };
  const how = { actions: false, renderer: "svg", config, ...(dark.matches ? { theme: "dark" } : {}) };
  await vegaEmbed("#chart", { ...held.chart, datasets: { shown: rows } }, how);
}

function read() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in state) state[name] = value;
  return draw();
}

$("said").textContent = `Study ${held.study}. ${held.said}`;
if (held.rows.length) {
  for (const name of CHOICES) $(name).addEventListener("change", (event) => { state[name] = event.target.value; draw(); });
  dark.addEventListener("change", draw);
  addEventListener("hashchange", read);
  read();
} else {
  $("ask").hidden = true;
  document.querySelector("table").hidden = true;
}
