"""`make bench BENCH=scale`: what planning and analysing a study of thousands of cells cost.

    make bench BENCH="scale --cells 1000 3000 10000 --json build/scale.json"

Each study is the paper's, with more blocks (or, with --by workloads, with more workloads) until it
has so many cells. Snakemake plans it (a dry run) with nothing measured and with half of it: records
of the study that ships, under the specs of these cells. Of the half, merge, estimate, figures' data
and pages are made as the workflow does; telemetry is left out, its merging is one pass over files.
Seconds are of the CPU (user and system), as a busy machine alters them less; memory is the peak of
any one process.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from workflow.collocation import ROOT
from workflow.collocation.record import provenance
from workflow.collocation.spec import grid
from workflow.collocation.spec.load import load_study, load_workloads, read_yaml

NAME = "large"
ANALYSIS = ("merge", "estimate", "figures --data-only", "pages")


def lay(cells: int, by: str, folder: Path) -> list[grid.Cell]:
    """A study of about so many cells, its catalogue and its cells."""
    catalogue = read_yaml(ROOT / "config" / "workloads.yaml")
    study = read_yaml(ROOT / "config" / "studies" / "paper.yaml")
    one = grid.expand(load_study(ROOT / "config/studies", "paper", _loaded(ROOT)), _loaded(ROOT))
    blocks = study["replicates"]
    if by == "blocks":
        study["replicates"] = max(round(cells * blocks / len(one)), 1)
    else:
        ladders = study["ladders"]
        for turn in range(1, round(cells / len(one))):
            for ladder in ladders[: len(ladders)]:
                names = {name: f"{name}_v{turn}" for name in ladder["workloads"]}
                catalogue |= {names[name]: catalogue[name] for name in names}
                study["ladders"] = [*study["ladders"], ladder | {"workloads": [*names.values()]}]
    for path, content in (("studies/large.yaml", study), ("workloads.yaml", catalogue)):
        (folder / "config" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "config" / path).write_text(yaml.safe_dump(content), encoding="utf-8")
    workloads = _loaded(folder)
    return grid.expand(load_study(folder / "config/studies", NAME, workloads), workloads)


def _loaded(root: Path) -> dict:
    return load_workloads(root / "config" / "workloads.yaml")


def measure(cells: Sequence[grid.Cell], folder: Path) -> None:
    """Records of these cells, as if this machine had measured them without a GPU."""
    shipped = sorted((ROOT / "results" / "h200").glob("cells/*/*/*/r*/a*/run.json"))
    found = map(json.loads, (path.read_bytes() for path in shipped))
    completed = (r for r in found if r["status"] == "completed" and r["windows"])
    like = {len(record["members"]): record for record in completed}
    study = folder / "results" / NAME
    for number, cell in enumerate(cells):
        record = like.get(cell.n) or like[max(n for n in like if n <= cell.n)]
        members = [
            record["members"][i % len(record["members"])] | {"member": i, "workload": spec.workload}
            for i, spec in enumerate(cell.spec.members)
        ]
        named = {key: getattr(cell, key) for key in ("scenario", "arm", "method", "replicate")}
        measured = record | {
            "study": NAME,
            "cell": {"id": cell.id, "attempt": 1, **named},
            "spec": cell.spec.to_json(),
            "method": record["method"] | {"name": cell.method},
            "members": members,
            "gpu": None,
            "files": {},
            "provenance": record["provenance"]
            | {"machine": provenance.machine_alias(), "started_at": f"{number:012}"},
        }
        path = study / "cells" / cell.id / "a1" / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(measured, indent=1), encoding="utf-8")
    keys = ("id", "scenario", "arm", "method", "replicate", "n")
    plan = [{key: getattr(cell, key) for key in keys} for cell in cells]
    (study / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    names = (f"results/{NAME}/cells/{cell.id}/a1/run.json\n" for cell in cells)
    (study / "runs.txt").write_text("".join(names), encoding="utf-8")


def spent(command: Sequence[str], folder: Path) -> tuple[dict[str, float], str]:
    """CPU seconds, wall seconds and peak memory (GB) of a command, and what it printed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        line = [sys.executable, "-P", "-m", *command]
        run = subprocess.Popen(line, cwd=folder, env=environment, stdout=out, stderr=out)
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        said = out.read()
    if run.returncode:
        sys.exit(f"bench: {' '.join(command[:3])} ended with {run.returncode}\n{said[-2000:]}")
    cost = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": time.monotonic() - began}
    return {key: round(value, 2) for key, value in cost.items()} | {
        "gb": round(used.ru_maxrss / 1e6, 3)
    }, said


def planned(folder: Path) -> dict[str, float]:
    """What a dry run costs, and how many cells it would measure."""
    config = ["studies=config/studies", "workloads=config/workloads.yaml", f"study={NAME}"]
    profile = ["--workflow-profile", str(ROOT / "profiles" / "default")]
    command = ["snakemake", "-n", "-s", str(ROOT / "Snakefile"), *profile]
    cost, said = spent([*command, "--config", *config, "gpu=cpu"], folder)
    found = re.findall(r"^collocate +(\d+)$", said, re.MULTILINE)
    return cost | {"jobs": int(found[-1]) if found else 0}


def analysed(folder: Path) -> dict[str, dict[str, float]]:
    """What each command of analysis costs."""
    out = f"results/{NAME}"
    of = {
        "merge": ["--study", NAME, "--list", f"{out}/runs.txt", "--output", f"{out}/runs.parquet"]
    }
    found = {}
    for command in ANALYSIS:
        arguments = [*command.split(), *of.get(command, ["--folder", out])]
        found[command], _ = spent(["analysis", *arguments], folder)
    return found


def studied(cells: int, by: str) -> dict:
    """All of a study of about so many cells."""
    with tempfile.TemporaryDirectory(prefix="scale-") as scratch:
        folder = Path(scratch)
        every = lay(cells, by, folder)
        found = {"cells": len(every), "by": by, "new": planned(folder)}
        measure(every[: len(every) // 2], folder)
        return found | {"half": planned(folder), **analysed(folder)}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--by", choices=("blocks", "workloads"), default="blocks")
    parser.add_argument("--json", type=Path, help="write the numbers here, too")
    args = parser.parse_args(argv)
    columns = ("new", "half", *ANALYSIS)
    print(f"CPU seconds (wall; GB) over {args.by}: planning with nothing and with half measured,")
    print("and analysing that half")
    print(f"{'cells':>7}" + "".join(f"{name:>24}" for name in columns))
    rows = []
    for cells in args.cells:
        rows.append(studied(cells, args.by))
        each = [rows[-1][name] for name in columns]
        told = [f"{one['cpu_s']:.1f} ({one['wall_s']:.1f}; {one['gb']:.2f})" for one in each]
        print(f"{rows[-1]['cells']:7}" + "".join(f"{text:>24}" for text in told), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0
