"""Why you can believe these numbers: one page of what was checked of a study, and what was not.

python -m analysis.web.belief --runs results/smoke/runs.parquet \\
    --checks results/smoke/checks.json \\
    --evidence results/smoke/tables/evidence.csv --bench results/smoke/bench --output belief.html

Every number on it is counted in these files. --bench: a folder that may hold sampler.json (`make
bench BENCH="sampler --output …"`) and smact.json; what is not there was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd

from analysis import flags, looks, twins, web
from analysis.cells import read_runs
from analysis.records import losses
from analysis.names import ANCHOR, TWIN, method_order, parse_scenario
from analysis.tables.evidence import MEASURED, PROVEN, TOO_EARLY
from analysis.web import environment
from analysis.words import fixed, number_of, significant

# What tests/test_faults.py has members and machines do, through the real commands; by its names.
LIES = {
    "other_pipe": "a member uses another MPS pipe folder, and so runs without MPS",
    "other_gpu": "a member runs on another GPU",
    "other_part": "a member runs on another MIG instance",
    "cap_unset": "a member drops its limit of SMs",
    "limit_unset": "a member drops its limit of device memory",
    "skip_backward": "a member skips its backward pass",
    "other_batch": "a member trains on other samples",
    "sleep": "a member sleeps between its steps",
}
FAULTS = {
    "starves": "device memory runs out",
    "illegal_naive": "a kernel writes where nothing is, without MPS",
    "illegal_mps": "a kernel writes where nothing is, under MPS, which takes the neighbours along",
    "asserts": "a device-side assertion fails",
    "killed_naive": "a member is killed, without MPS",
    "killed_mps": "a member is killed, under MPS",
    "killed_mig": "a member is killed, on a MIG instance",
    "hangs": "a member hangs",
    "server_dies": "the MPS server dies",
    "daemon_dies": "the MPS daemon dies",
}


def methods(evidence: pd.DataFrame) -> list[dict]:
    """Per method: measured cells, in how many it was proven, in how many not, and how many ran out
    of memory before it could be; a proof, a reason.

    `evidence`: rows of tables/evidence.csv as text.
    """
    found = []
    for method in sorted(evidence["method"].unique(), key=method_order):
        rows = evidence[evidence["method"] == method]
        measured = rows["status"].isin(MEASURED)
        proven, early = (rows["in_force"] == words for words in (PROVEN, TOO_EARLY))
        reasons = Counter(rows.loc[~measured, "proof"])
        found.append(
            {
                "method": method,
                "measured": int(measured.sum()),
                "proven": int(proven.sum()),
                "unproven": int((measured & ~proven & ~early).sum()),
                "early": int(early.sum()),
                "proof": next(iter(rows.loc[proven, "proof"]), ""),
                "not_measured": int((~measured).sum()),
                "reason": reasons.most_common(1)[0][0] if reasons else "",
            }
        )
    return found


def work(checks: list[dict]) -> list[dict]:
    """Per workload: how many members' losses agree, differ, or cannot be told, and the widest."""
    by: dict[str, list[dict]] = defaultdict(list)
    for row in checks:
        by[row["workload"]].append(row)
    found = []
    for workload, rows in sorted(by.items()):
        counts = Counter(row["loss_check"] for row in rows)
        agreeing = [row for row in rows if row["loss_check"] == losses.AGREES]
        widest = max((row["distance"] for row in agreeing), default=None)
        found.append(
            {
                "workload": workload,
                "agrees": counts[losses.AGREES],
                "differs": counts[losses.DIFFERS],
                "untold": len(rows) - counts[losses.AGREES] - counts[losses.DIFFERS],
                "widest": "" if widest is None else f"{fixed(100 * widest, 1)} %",
            }
        )
    return found


def why_untold(checks: list[dict]) -> str:
    """Why the losses of some members cannot be told: each reason, and of how many."""
    # One that was held against a single run alone and is not near it has a basis.
    found = Counter((row["loss_check"], bool(row["basis"])) for row in checks)
    reasons = {
        (losses.NEEDS_TWO, False): "there is no other run alone to compare with, or none that "
        "agrees with another",
        (losses.NEEDS_TWO, True): f"more than {100 * losses.FLOOR:g} % from the only run alone to "
        "compare with, and one does not tell how far two may be apart",
        (losses.NO_LOSS, False): "no loss was recorded",
    }
    return "; ".join(f"{words} ({found[key]})" for key, words in reasons.items() if found[key])


def pairs(checks: list[dict]) -> list[dict]:
    """A/A pairs (analysis.twins) in words; `hidden`: the largest difference in the interval."""
    verdict = {True: "differs", False: "no difference", None: "one replicate, no interval"}
    return [
        row
        | {
            "ratio": fixed(row["ratio"], 3),
            "interval": "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
            "verdict": verdict[row["differs"]],
            "hidden": "" if row["low"] is None else f"{100 * twins.hides(row):.1f} %",
        }
        for row in checks
    ]


def flagged(runs: pd.DataFrame, found: dict[str, list[str]]) -> list[dict]:
    """Per flag: its sign, meaning, how many cells have it, and which."""
    present = [*flags.KNOWN, *sorted(set(found) - set(flags.KNOWN))]
    return [
        {
            "flag": flag.replace("_", " "),
            "meaning": flags.legend([flag])[0],
            "cells": found.get(flag, []),
        }
        for flag in present
    ]


def telemetry(runs: pd.DataFrame) -> dict[str, int]:
    """How many measured cells have complete, incomplete or no telemetry."""
    cells = _measured(runs)
    return {str(k): int(v) for k, v in cells["telemetry"].fillna("none").value_counts().items()}


def sampler_costs(content: dict) -> list[dict]:
    """What monitoring costs, per workload and monitor, by what make bench writes."""
    return [
        {
            "workload": workload,
            "monitor": {"ours": "our sampler", "smi": "nvidia-smi -l 1"}.get(monitor, monitor),
            "loss": fixed(cost["loss_percent"], 3),
            "interval": "" if cost["low"] is None else f"{cost['low']:.3f} to {cost['high']:.3f}",
            "pairs": cost["pairs"],
            "cpu": significant(cost["cpu"]),
            "rate": fixed(cost["readings_per_s"], 1),
            "device": (content.get("device") or {}).get("name", "CPU"),
        }
        for workload, found in content.get("workloads", {}).items()
        for monitor, cost in found["costs"].items()
    ]


def calibration(content: dict) -> list[dict]:
    """SMACT read while a known number of SMs was kept busy: {"device", "readings": [{"busy_sms",
    "sm_count", "smact"}]}.
    """
    return [
        {
            "device": content["device"]["name"],
            "busy": f"{row['busy_sms']} of {row['sm_count']}",
            "true": fixed(row["busy_sms"] / row["sm_count"], 4),
            "read": fixed(row["smact"], 4),
        }
        for row in content.get("readings", [])
    ]


def summary(runs: pd.DataFrame, checks: dict, evidence: pd.DataFrame) -> list[tuple[str, bool]]:
    """The page in short: a sentence each, and whether it is good news."""
    proven, early = (int((evidence["in_force"] == words).sum()) for words in (PROVEN, TOO_EARLY))
    told = Counter(row["loss_check"] for row in checks["loss"])
    differing = told[losses.DIFFERS]
    untold = len(checks["loss"]) - told[losses.AGREES] - differing
    suspect = set().union(*(checks["flags"].get(flag, []) for flag in flags.SUSPECT), set())
    seen = set().union(*(checks["flags"].get(flag, []) for flag in flags.TELEMETRY), set())
    cells = evidence.loc[evidence["status"].isin(MEASURED), "cell"]
    anchors = sum(map(_is_anchor, cells))
    begin = f" ({anchors} of them at the start of a sitting)" if anchors else ""
    other = f"; {early} ran out of memory before it could be" if early else ""
    found = [
        (
            f"In {proven} of {number_of(len(cells), 'cell')} measured{begin}, the method was "
            f"proven in force{other}.",
            proven > 0 and proven + early == len(cells),
        ),
        (
            f"{told[losses.AGREES]} of {len(checks['loss'])} members' losses agree with those of "
            f"their workload trained alone, {differing} differ{_fewer_sms(runs, checks['loss'])}, "
            f"{untold} cannot be told.",
            told[losses.AGREES] > 0 and not differing and not untold,
        ),
        _twins(runs, checks["aa"]),
        (
            f"{number_of(len(suspect), 'cell')} carry a flag that makes their rates suspect, "
            f"{len(seen)} one that makes their telemetry suspect.",
            not suspect and not seen,
        ),
        (
            "Nothing that should be the same differs between the cells."
            if not checks["mismatches"]
            else f"{len(checks['mismatches'])} things that should be the same differ: "
            + ", ".join(row["field"] for row in checks["mismatches"])
            + ".",
            not checks["mismatches"],
        ),
    ]
    made = sorted(runs.loc[runs["source"] == "synthetic", "dataset"].dropna().unique())
    if made:
        found.append((f"The data of {', '.join(made)} were generated (synthetic).", False))
    return found


def _fewer_sms(runs: pd.DataFrame, checks: list[dict]) -> str:
    """Of members whose losses differ, how many had fewer SMs than alone; empty where none had.

    PyTorch draws random numbers in a grid that grows with the SMs a process may use.
    """
    limited = runs["sm_percent"].notna() | runs["device_uuid"].fillna("").str.startswith("MIG-")
    places = ["cell", "attempt", "member"]
    fewer = set(runs.loc[limited, places].itertuples(index=False, name=None))
    differing = [row for row in checks if row["loss_check"] == losses.DIFFERS]
    count = sum(tuple(row[name] for name in places) in fewer for row in differing)
    if not count:
        return ""
    who = "all" if count == len(differing) else f"{count}"
    return f" ({who} of these with fewer SMs than alone, and so from other random numbers)"


def _twins(runs: pd.DataFrame, checks: list[dict]) -> tuple[str, bool]:
    """A/A in a sentence: an interval that holds 1 may be wide, and then says little."""
    if not checks:
        return unpaired(runs) or "A/A was not measured with this study.", False
    told = [twins.hides(row) for row in checks if row["low"] is not None]
    hides = (
        f"; intervals this wide hide differences of up to {100 * max(told):.0f} %" if told else ""
    )
    return f"{twins.phrase(checks)}{hides}.", not any(row["differs"] for row in checks)


def unpaired(runs: pd.DataFrame) -> str:
    """That naive's twin was measured, of a study without an A/A pair; empty where it was not."""
    rows = _measured(runs)
    count = int((rows["method"] == TWIN).sum())
    if not count:
        return ""
    were, whose = ("was", "not") if count == 1 else ("were", "none")
    return (
        f"A/A: {number_of(count, 'cell')} of {TWIN} {were} measured, {whose} with a naive cell of "
        "its block on its GPU; nothing can be compared."
    )


def _is_anchor(cell: str) -> bool:
    """Whether this is the id of a cell that a sitting begins with."""
    return parse_scenario(cell.split("/")[0]).variant == ANCHOR


def _measured(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per measured cell."""
    rows = runs[runs["current"] & runs["status"].isin(MEASURED)]
    return rows.drop_duplicates(["cell", "attempt"])


def _json(folder: Path | None, name: str) -> dict:
    """What the file holds; nothing where there is none."""
    if folder is None or not (folder / name).exists():
        return {}
    return json.loads((folder / name).read_text(encoding="utf-8"))


def page(runs: pd.DataFrame, checks: dict, evidence: pd.DataFrame, bench: Path | None) -> str:
    """The HTML page."""
    current = runs[runs["current"]]
    counted = flags.counted(current)
    return web.render(
        "belief.html",
        study=checks["study"],
        about="; ".join(part for part in looks.footer_parts(current) if part not in counted),
        summary=summary(current, checks, evidence),
        methods=methods(evidence),
        lies=LIES.values(),
        faults=FAULTS.values(),
        pairs=pairs(checks["aa"]),
        unpaired=unpaired(runs),
        work=work(checks["loss"]),
        untold=why_untold(checks["loss"]),
        tolerance={
            "factor": f"{losses.FACTOR:g}",
            "floor": f"{100 * losses.FLOOR:g} %",
            "ceiling": f"{100 * losses.CEILING:g} %",
        },
        telemetry=telemetry(runs),
        contradictions={flag: len(checks["flags"].get(flag, [])) for flag in flags.TELEMETRY},
        measured=len(_measured(runs)),
        costs=sampler_costs(_json(bench, "sampler.json")),
        calibration=calibration(_json(bench, "smact.json")),
        environment=environment.values(runs),
        mismatches=checks["mismatches"],
        flags=flagged(runs, checks["flags"]),
        unreadable=checks["unreadable"],
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.web.belief",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", required=True, type=Path, metavar="RUNS.parquet")
    parser.add_argument("--checks", required=True, type=Path, metavar="CHECKS.json")
    parser.add_argument("--evidence", required=True, type=Path, metavar="EVIDENCE.csv")
    parser.add_argument("--bench", type=Path, metavar="FOLDER", help="what make bench measured")
    parser.add_argument("--output", required=True, type=Path, metavar="BELIEF.html")
    arguments = parser.parse_args(argv)
    checks = json.loads(arguments.checks.read_text(encoding="utf-8"))
    evidence = pd.read_csv(arguments.evidence, dtype=str, keep_default_na=False)
    runs = read_runs(arguments.runs)
    web.write(page(runs, checks, evidence, arguments.bench), arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
