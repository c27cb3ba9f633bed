"""What became of each planned set, and counts of the whole study."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median

from analysis.estimates import runs as of_runs
from analysis.estimates.quantities import QUANTITIES
from analysis.estimates.runs import COMPLETED, NOT_RUN, PLAIN, Host, Run
from analysis.estimates.schema import RANGE, Estimate, Replicate, described
from workflow.collocation.spec.names import ALTERNATE, Side, parse_scenario, sides_of


def outcomes(runs: Sequence[Run], expected: Iterable[Mapping]) -> list[Estimate]:
    """What became of each planned set: completed replicates of those planned, and why not more.

    An alternating cell is a replicate of each set that is a side of it. Where it did not complete,
    that says nothing of one side: such a replicate was not run.
    """
    cells: dict[tuple, dict[str, Run | None]] = defaultdict(dict)
    for cell in expected:
        identity = f"{cell['scenario']}/{cell['arm']}/{cell['method']}/r{cell['replicate']}"
        for side in _sets(cell["scenario"], cell["method"]):
            cells[side.scenario, cell["arm"], side.method].setdefault(identity, None)
    for run in runs:
        if run.current:
            for side in _sets(run.scenario.id, run.method):
                identity = run.cell.rpartition("/")[0]
                cells[side.scenario, run.arm, side.method][identity] = run
    found = []
    for (scenario, arm, method), by_cell in cells.items():
        tried = [run for run in by_cell.values() if run]
        counted = Counter(_became(run) if run else NOT_RUN for run in by_cell.values())
        done = [run for run in tried if run.status == COMPLETED]
        rest = Counter({s: c for s, c in counted.items() if s != COMPLETED})
        reasons = [run.members[0]["reason"] for run in tried]
        found.append(
            described(
                Estimate(
                    "outcome",
                    scenario=scenario,
                    arm=arm,
                    method=method,
                    value=float(counted[COMPLETED]),
                    n=counted.total(),
                    hosts=len({run.host for run in done}),
                    status=COMPLETED if done else _commonest(rest),
                    note=next((reason for reason in reasons if reason), ""),
                    replicates=tuple(Replicate(run.cell, 1.0) for run in done),
                )
            )
        )
    return found


def _sets(scenario: str, method: str) -> Iterable[Side]:
    return sides_of(scenario, method).values() or [Side(scenario, method)]


def _became(run: Run) -> str:
    return run.status if run.side or ALTERNATE not in run.scenario.variant else NOT_RUN


def _seconds(moment: object) -> float | None:
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return None


def _commonest(counted: Counter) -> str:
    """Most frequent status; what was run before what was not."""
    return max(sorted(counted), key=lambda status: (status != NOT_RUN, counted[status]))


def counts(
    runs: Sequence[Run],
    expected: Iterable[Mapping],
    estimates: Sequence[Estimate],
    hosts: Iterable[Host],
    left_out: Mapping[str, int],
) -> Iterator[Estimate]:
    """Numbers of the whole study: cells by status, hosts, windows, how well rates repeat."""

    def count(name: str, value: float, note: str, **more: object) -> Estimate:
        return Estimate("count", name=name, value=float(value), note=note, **more)

    current = {run.cell: run for run in runs if run.current}
    cells = {cell.rpartition("/")[0] for cell in current}
    cells |= {f"{c['scenario']}/{c['arm']}/{c['method']}/r{c['replicate']}" for c in expected}
    by_status = Counter(run.status for run in current.values())
    by_status[NOT_RUN] = len(cells) - by_status.total()
    yield count("cells", len(cells), "cells planned")
    known = (COMPLETED, "out_of_memory", "unsupported", "failed", "timed_out", NOT_RUN)
    for status in (*known, *sorted(by_status.keys() - {*known})):
        yield count(f"cells_{status}", by_status[status], f"cells {status.replace('_', ' ')}")
    hosts = list(hosts)
    yield count("hosts", len(hosts), "machines that measured cells")
    yield count("sessions", sum(len(host.sessions) for host in hosts), "visits to them")
    if begun := [at for run in runs if (at := _seconds(run.reading("started_at"))) is not None]:
        yield count("began", min(begun), "when its first cell was measured, since 1970", unit="s")
    for host in hosts:
        note = f"{host.machine}: {host.hardware}; {', '.join(host.sessions)}"
        yield count("host_cells", host.cells, note, host=host.label)
    for hardware, cells in left_out.items():
        yield count(f"left_out_{_slug(hardware)}", cells, f"cells on {hardware}, left out")
    done = [run for run in runs if run.current and run.status == COMPLETED and run.window]
    plain = (run for run in done if run.window == PLAIN and not run.side)
    seconds = [run.members[0]["window_s"] for run in plain]
    if seconds := [s for s in seconds if s]:
        span = {"low": min(seconds), "high": max(seconds), "spread": RANGE, "unit": "s"}
        yield count("window_s", median(seconds), "length of the plain windows", **span)
    judged = [steady for run in done if (steady := of_runs.steady(run)) is not None]
    yield count("windows", len(judged), "windows whose rate was followed: not turns")
    yield count("windows_unsteady", judged.count(False), "windows whose total rate was not steady")
    for name, turns in (("replicates", False), ("replicates_turns", True)):
        mine = {run.cell for run in done if bool(run.side) is turns}
        if times := Counter(cell.rsplit("/", 2)[0] for cell in mine).values():
            span = {"low": min(times), "high": max(times), "spread": RANGE}
            what = "an alternating cell" if turns else "a set"
            yield count(name, median(times), f"completed replicates of {what}", **span)
    varied = [
        e
        for e in estimates
        if e.quantity == "rate_cv" and not e.host and not parse_scenario(e.scenario).variant
    ]
    spreads = {
        f"cv_{name}": (
            [e.value for e in varied if (e.jobs == 1) is one and (e.method == "naive" or not one)],
            f"variation of throughput over a host's blocks, jobs {name}: middle of the sets",
        )
        for name, one in (("alone", True), ("together", False))
    }
    for name in ("rate_apart", "device_rate_apart"):
        found = [e.value for e in estimates if e.quantity == name]
        spreads[name] = found, f"{QUANTITIES[name].title}: middle of the jobs"
    for name, (found, note) in spreads.items():
        if found:
            span = {"low": min(found), "high": max(found), "spread": RANGE}
            yield count(name, median(found), note, **span)
    checked = {(run.cell, m["member"]): m["loss_check"] for run in done for m in run.members}
    for verdict, number in sorted(Counter(checked.values()).items(), key=str):
        if verdict:
            note = f"members whose loss: {verdict}"
            yield count(f"losses_{_slug(verdict)}", number, note)
    proven = Counter(
        run.members[0]["method_verified"] is True
        for run in current.values()
        if run.status == COMPLETED
    )
    yield count("method_proven", proven[True], "completed cells whose method was proven in force")
    yield count("method_not_proven", proven[False], "completed cells without that proof")


def provenance(runs: Sequence[Run]) -> Iterator[Estimate]:
    """Of what the completed cells were measured on and with; value: how many of them."""
    data, software = Counter(), Counter()
    counted: set[tuple[str, str]] = set()  # a cell once, however many sides it has
    kinds = {"real": "real", "synthetic": "generated (synthetic)"}
    for run in runs:
        if not run.current or run.status != COMPLETED or run.window == "after":
            continue
        pairs = {(m["dataset"], m["source"]) for m in run.members if m["dataset"]}
        said = {f"{name}: {kinds.get(source, source)}" for name, source in pairs}
        data.update(what for what in said if (run.cell, what) not in counted)
        first = run.members[0]
        named = {"GPU": first["gpu_name"] or "none", "CUDA driver": first["driver"]}
        named |= {name: first[name] for name in ("torch", "timm", "python")}
        said_of = {f"{name} {value}" for name, value in named.items() if value}
        software.update(what for what in said_of if (run.cell, what) not in counted)
        counted |= {(run.cell, what) for what in (*said, *said_of)}
    for kind, counted in (("data", data), ("software", software)):
        for what, cells in sorted(counted.items()):
            yield Estimate("count", name=f"{kind}_{_slug(what)}", value=float(cells), note=what)


def _slug(text: object) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(text)).strip("_").lower()
