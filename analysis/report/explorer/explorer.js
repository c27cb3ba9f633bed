"use strict";
// Shows numbers of the study that the page holds, and computes none.
const study = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const CHOICES = ["job", "implementation", "quantity"];
const state = { job: study.first[0], implementation: study.first[1], quantity: "stp" };
const dark = matchMedia("(prefers-color-scheme: dark)");

const rowsWith = (wanted) => study.rows.filter((row) => Object.entries(wanted).every(([name, value]) => row[name] === value));

// What can be chosen: implementations and quantities that were measured of the job, most jobs first.
function options() {
  const shared = (rows) => rows.some((row) => row.jobs > 1);
  const jobs = Object.keys(study.jobs);
  if (!jobs.includes(state.job)) state.job = jobs.find((job) => shared(rowsWith({ job }))) ?? jobs[0];
  const implementations = Object.keys(study.implementations).filter((implementation) => rowsWith({ job: state.job, implementation }).length);
  if (!implementations.includes(state.implementation)) state.implementation = implementations.find((implementation) => shared(rowsWith({ job: state.job, implementation }))) ?? implementations[0];
  const quantities = Object.keys(study.quantities)
    .filter((quantity) => rowsWith({ job: state.job, implementation: state.implementation, quantity }).length);
  if (!quantities.includes(state.quantity)) [state.quantity] = quantities;
  return { job: jobs, implementation: implementations, quantity: quantities };
}

function tableRow(row) {
  const element = document.createElement("tr");
  for (const text of [row.count, row.method, row.text, row.measuredIn, row.id]) element.insertCell().textContent = text;
  return element;
}

async function draw() {
  const names = { job: study.jobs, implementation: study.implementations, quantity: study.quantities };
  const choices = options();
  for (const name of CHOICES)
    $(name).replaceChildren(...choices[name].map((value) => new Option(names[name][value], value, false, value === state[name])));
  const rows = rowsWith(state);
  rows.sort((a, b) => a.jobs - b.jobs);
  $("advice").textContent = study.advice[`${state.job}/${state.implementation}`] ?? "";
  $("title").textContent = study.quantities[state.quantity];
  $("meaning").textContent = study.meanings[state.quantity];
  document.querySelector("tbody").replaceChildren(...rows.map(tableRow));
  try { history.replaceState(null, "", `#${new URLSearchParams(state)}`); } catch { /* a frame without an address */ }
  const colours = [...new Map(rows.map((row) => [row.method, row.colour])).values()];
  const config = { background: "transparent", range: { category: colours } };
  const settings = { actions: false, renderer: "svg", config, ...(dark.matches ? { theme: "dark" } : {}) };
  await vegaEmbed("#chart", { ...study.chart, datasets: { numbers: rows } }, settings);
}

function read() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (name in state) state[name] = value;
  return draw();
}

$("scope").textContent = `Study ${study.name}. ${study.scope}`;
if (study.rows.length) {
  for (const name of CHOICES) $(name).addEventListener("change", (event) => { state[name] = event.target.value; draw(); });
  dark.addEventListener("change", draw);
  addEventListener("hashchange", read);
  read();
} else {
  $("ask").hidden = true;
  document.querySelector("table").hidden = true;
}
