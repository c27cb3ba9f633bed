"""What a shipped study found, in README.md's words: gains, claims, and how far to trust them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from analysis import flags, twins
from analysis.cells import of_baselines, read_runs
from analysis.names import parse_scenario
from analysis.tables.variance import BY_LOAD, WAITING, WITHIN, WORKING
from analysis.web import environment
from analysis.words import number_of
from release import manifest, reasons
from release.contents import LEDGER
from release.reasons import against_the_fastest

SHOWN = ("throughput_gain_faithful", "arms")  # figures that README shows
GAIN = (
    "Throughput gain (STP: what the jobs do together, over one of them alone, written the same "
    "way), with 95 % intervals"
)
SAME = 0.05  # two ratios that differ by less are called the same
DIFFERS = ("contradicted", "direction only")
OPEN = ("inconclusive", "not comparable")
ORDER = ("holds", *reversed(DIFFERS), *OPEN, "not testable here")
ARMS = {"faithful": "as the paper wrote it", "tuned": "tuned", "tuned_graph": "one CUDA graph"}


def text(study: Path, link: str) -> str:
    """Study, two figures, gains, verdicts, and where the paper's claims are not confirmed.

    link: the study's folder as README.md names it.
    """
    runs = read_runs(study / "runs.parquet")
    verdicts = json.loads((study / "claims.json").read_text(encoding="utf-8"))
    summary = pd.read_csv(study / "tables" / "summary.csv")
    there = [name for name in SHOWN if (study / "figures" / f"{name}.png").exists()]
    pictures = [f"![{name.replace('_', ' ')}]({link}/figures/{name}.png)" for name in there]
    short = _in_short(study, link), _alone_under_mps(summary), against_the_fastest(runs, ARMS)
    parts = [
        f"{measured(runs, study)} {_replicates(summary)}{_windows(runs)}".rstrip(),
        "\n".join(filter(None, short)),
        *pictures,
        reasons.jobs(runs, ARMS),
        _gains(summary, runs, link),
        _claims(verdicts, link),
        _reasons(verdicts, runs),
        _repeats(pd.read_csv(study / "tables" / "variance.csv"), link),
        _twins(study),
        _sittings(pd.read_csv(study / "tables" / "sittings.csv"), link),
        f"All of it: [claims]({link}/claims.md), [guidelines]({link}/guidelines.md), "
        f"[summary]({link}/tables/summary.md), `{link}/explorer.html`, `{link}/belief.html`.",
        _root(study, link),
    ]
    return "\n\n".join(filter(None, parts))


def measured(runs: pd.DataFrame, study: Path) -> str:
    """What the study is: hardware, how its planned cells ended, sittings, data."""
    planned = json.loads((study / "plan.json").read_text(encoding="utf-8"))
    cells = runs[runs["current"]].drop_duplicates("cell")
    counts = cells["status"].value_counts().to_dict()
    missing = len({cell["id"] for cell in planned} - set(cells["cell"]))
    counts |= {"not run": missing} if missing else {}
    ended = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    told = environment.values(runs)
    what = [", ".join(told.get("GPU or CPU", ["no hardware"]))]
    what += [f"{name} {', '.join(told[name])}" for name in ("driver", "torch") if name in told]
    data = ", ".join(told.get("data", []))
    done = cells[cells["status"] == "completed"]
    sittings, machines = (done[name].nunique() for name in ("sitting", "machine"))
    return (
        f"Study `{study.name}` on {', '.join(what)}: {len(planned)} cells, {ended}; "
        f"{number_of(sittings, 'sitting')} on {number_of(machines, 'machine')}. Data: {data}."
    )


def _replicates(summary: pd.DataFrame) -> str:
    """How often sets of jobs were measured."""
    counts = summary.loc[(summary["n"] > 1) & summary["stp"].notna(), "completed"]
    if counts.empty:
        return ""
    text = f"A gain is of {_range(counts, '.0f')} replicates"
    return text + (f", most often {counts.mode()[0]:.0f}. " if counts.nunique() > 1 else ". ")


def _windows(runs: pd.DataFrame) -> str:
    """How long cells were measured, and how many were not steady."""
    rows = reasons.in_windows(runs)
    lengths, cells = rows["window_s"].dropna(), rows.drop_duplicates("cell")["flags"]
    if lengths.empty:
        return ""
    unsteady = sum(flags.UNSTEADY in flags.split(found) for found in cells) / len(cells)
    return f"Windows of {_range(lengths, '.0f')} s; {100 * unsteady:.0f} % of them unsteady (~)."


def _range(values: pd.Series, form: str) -> str:
    ends = dict.fromkeys(format(end, form) for end in (values.min(), values.max()))
    return " to ".join(ends)


def _in_short(study: Path, link: str) -> str:
    """What the guidelines begin with, for jobs as the paper wrote them: where sharing pays."""
    text = (study / "guidelines.md").read_text(encoding="utf-8")
    _, found, rest = text.partition(f"## Arm `{[*ARMS][0]}`\n")
    if not found:
        return ""
    advice = re.split("^##", rest, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return (
        "In short, of jobs as the paper wrote them "
        f"([all of it, job by job]({link}/guidelines.md)):\n\n{advice}"
    )


def _alone_under_mps(summary: pd.DataFrame) -> str:
    """Jobs alone that are shown to run at another speed under an MPS daemon; empty without any."""
    rows = reasons.plain(summary[summary["arm"] == [*ARMS][0]])
    rows = rows[(rows["n"] == 1) & (rows["method"] == "mps")]
    rows = rows[(rows["low"] > 1) | (rows["high"] < 1)]
    if rows.empty:
        return ""
    told = "; ".join(f"{row['family']}, {_gain(row.to_frame().T)}" for _, row in rows.iterrows())
    return f"- **A job alone under MPS** runs at another speed than without: {told}."


def _gains(summary: pd.DataFrame, runs: pd.DataFrame, link: str) -> str:
    """STP of copies of one job: at seven, and the most there is, by arm and method."""
    sets = ["arm", "scenario", "method"]
    rates = reasons.together(reasons.in_windows(runs), sets, "samples_per_s")
    visits = runs["sitting"].nunique()
    rows = reasons.plain(summary)
    rows = rows[(rows["n"] > 1) & rows["stp"].notna()]
    shown, marked = [], []
    by = rows.groupby(["family", "arm"], sort=True)
    for (workload, arm), own in sorted(
        by, key=lambda item: (item[0][0], [*ARMS].index(item[0][1]))
    ):
        at_seven = {m: own[(own["n"] == 7) & (own["method"] == m)] for m in ("naive", "mps")}
        best = own.loc[own["stp"].idxmax()]
        marked += [best["flags"], *(flag for one in at_seven.values() for flag in one["flags"])]
        shown.append(
            {
                "job": workload,
                "written": ARMS.get(arm, arm),
                "7, plain processes": _gain(at_seven["naive"]),
                "7 under MPS": _gain(at_seven["mps"]),
                "most": f"{_gain(best.to_frame().T)} ({best['n']:.0f}×, {best['method']})",
                "samples/s of these": f"{rates[arm, best['scenario'], best['method']]:,.0f}",
            }
        )
    if not shown:
        return ""
    table, known = tabulate(shown, "keys", "github", disable_numparse=True), flags.legend(marked)
    notes = [f"Marks, if any of a number's cells has them: {'; '.join(known)}."] if known else []
    if rows["low"].isna().any():
        notes.append("Without an interval: one replicate.")
    if (rows["stp"] > rows["n"]).any():
        notes.append("More than the number of jobs is no gain to count on: the job alone ran slow.")
    if visits > 1:
        notes.append(
            f"Intervals take blocks of {visits} sittings as alike: what differs from machine to "
            f"machine is not in them ([by sitting]({link}/tables/sittings.md))."
        )
    return "\n\n".join(filter(None, [f"{GAIN}:", table, " ".join(notes)]))


def _gain(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "–"
    row = rows.iloc[0]
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['stp']:.2f}{interval} {flags.marks(row['flags'])}".rstrip()


def _claims(verdicts: dict, link: str) -> str:
    by: dict[str, list[str]] = {}
    for claim in verdicts["claims"]:
        by.setdefault(claim["verdict"], []).append(claim["id"])
    lines = [f"- {name}: {len(by[name])} ({', '.join(by[name])})" for name in ORDER if name in by]
    lines += [f"- {name}: {len(ids)}" for name, ids in by.items() if name not in ORDER]
    head = (
        f"The paper's {len(verdicts['claims'])} claims, by rules fixed before measuring "
        f"([{verdicts['rules']}]({verdicts['rules']}), commit {verdicts['commit']}):"
    )
    return "\n".join([head, "", *lines])


def _reasons(verdicts: dict, runs: pd.DataFrame) -> str:
    """Claims that are not confirmed as they stand, and what the data say of why."""
    differ, left = (
        [
            f"- **{claim['id']}**, {claim['verdict']}: {claim['text']} {_why(claim)} "
            f"{reasons.facts(claim, runs)}".rstrip()
            for claim in verdicts["claims"]
            if claim["verdict"] in wanted
        ]
        for wanted in (DIFFERS, OPEN)
    )
    parts = ["\n".join(["Where we differ:", "", *differ])] if differ else []
    if left:
        parts.append(folded(f"What stays open: {len(left)}", "\n".join(left)))
    return "\n\n".join(parts)


def folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _why(claim: dict) -> str:
    return f"*{claim['why'][:1].upper()}{claim['why'][1:].rstrip('.')}.*"


def _repeats(variance: pd.DataFrame, link: str) -> str:
    within = variance[(variance["kind"] == WITHIN) & variance["cv"].notna()]
    if within.empty:
        return ""
    above = within[within["cv"] > within["bound"]]
    worst = within.loc[within["cv"].idxmax()]
    told = (
        f"Rates repeat within a block to {100 * within['cv'].median():.1f} % (median over jobs), "
        f"at worst {100 * worst['cv']:.1f} % ({worst['workloads']}, {worst['arm']}, "
        f"{worst['members']}); {len(above)} of {len(within)} are above the bound that was set "
        f"beforehand ([table]({link}/tables/variance.md))."
    )
    by_load = variance[(variance["kind"] == BY_LOAD) & variance["cv"].notna()]
    medians = by_load.groupby("members")["cv"].median()
    if {WORKING, WAITING} <= set(medians.index):
        told += (
            f" Cells that keep the GPU busy ({WORKING}) repeat to {100 * medians[WORKING]:.1f} %, "
            f"the others to {100 * medians[WAITING]:.1f} % (medians again)."
        )
    return told


def _twins(study: Path) -> str:
    """What plain processes under another name show, which should be nothing; empty without any."""
    checks = json.loads((study / "checks.json").read_text(encoding="utf-8"))
    if not (said := twins.phrase(checks["aa"])):
        return ""
    return f"Plain processes measured twice in a block, as if they were two methods: {said}."


def _sittings(rows: pd.DataFrame, link: str) -> str:
    """By how much jobs alone differ between sittings; whether the GPU worked as long for them."""
    found = {}
    for (arm, scenario), own in rows[of_baselines(rows)].groupby(["arm", "scenario"]):
        rates = own["samples_per_s"].dropna()
        if len(rates) > 1:
            job = f"{parse_scenario(scenario).title}, {arm}"
            found[job] = (
                rates.max() / rates.min(),
                rates,
                own["gract"].dropna(),
                own["spread"].max(),
            )
    if not found:
        return ""
    least, most = (of(found, key=lambda job: found[job][0]) for of in (min, max))
    factor, rates, busy, within = found[most]
    text = (
        f"Between sittings the rate of a job alone differs by a factor of {found[least][0]:.2f} "
        f"({least}) to {factor:.2f} ({most}: {reasons.listed(rates, ',.0f')} samples/s"
    )
    if len(busy) == len(rates):
        text += f", at a GRACT of {reasons.listed(busy, '.2f')}"
        if abs(busy.max() / busy.min() / factor - 1) < SAME and busy.idxmax() == rates.idxmax():
            text += ": the GPU worked as long for a sample, and idled longer between"
    if pd.notna(within):
        text += f"; within one sitting by up to {within:.2f}"
    return f"{text}; [table]({link}/tables/sittings.md))."


def _root(study: Path, link: str) -> str:
    """What holds the raw files from outside their folder; nothing before a study is sealed."""
    path = study / LEDGER
    if not path.exists():
        return ""
    root = manifest.root(path.read_text(encoding="utf-8"))
    return f"SHA-256 of the list of its raw files, [{LEDGER}]({link}/{LEDGER}): `{root}`."
