"""`make bench BENCH=scale`: how do time and memory of analysis grow with a study?

    make bench BENCH="scale --study results/h200 --cells 576 2304 5760"

Copies the records of a measured study under other replicates (or, with --by workloads, under other
workloads) until there are so many, and runs merge, estimate and pages on them as the workflow does.
Steps are linked; telemetry is left out, for its merging is one pass over files.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = ("merge", "estimate", "figures --data-only", "pages")


def copies(study: Path, cells: int, by: str, folder: Path) -> Path:
    """Lay out so many records of the study in the folder; the study's folder there."""
    records = sorted(study.glob("cells/*/*/*/r*/a*/run.json"))
    out = folder / "results" / study.name
    names, planned = [], []
    for number in range(cells):
        turn, place = divmod(number, len(records))
        text = records[place].read_text(encoding="utf-8")
        record = json.loads(text)
        if turn and by == "workloads":
            for workload in {member["workload"] for member in record["spec"]["members"]}:
                text = text.replace(workload, f"{workload}_v{turn}")
            record = json.loads(text)
        cell = record["cell"]
        if turn and by == "replicates":
            cell["replicate"] += 100 * turn
            cell["id"] = f"{cell['id'].rpartition('/')[0]}/r{cell['replicate']}"
        path = out / "cells" / cell["id"] / f"a{cell['attempt']}" / "run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record), encoding="utf-8")
        if (steps := records[place].with_name("steps.parquet")).exists():
            path.with_name(steps.name).symlink_to(steps.resolve())
        names.append(str(path))
        keys = ("scenario", "arm", "method", "replicate")
        planned.append({k: cell[k] for k in keys} | {"n": len(record["spec"]["members"])})
    (out / "runs.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    (out / "plan.json").write_text(json.dumps(planned), encoding="utf-8")
    return out


def spent(command: str, study: Path) -> tuple[float, float]:
    """Seconds that a command took, and the most memory of any so far, GB."""
    arguments = command.split()
    if command == "merge":
        arguments += ["--study", study.name, "--list", str(study / "runs.txt")]
        arguments += ["--output", str(study / "runs.parquet")]
    else:
        arguments += ["--folder", str(study)]
    began = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    run = subprocess.run([sys.executable, "-m", "analysis", *arguments], env=environment)
    if run.returncode:
        sys.exit(f"bench: analysis {command} ended with exit code {run.returncode}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    return time.monotonic() - began, peak


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--study", type=Path, default=Path("results/h200"))
    parser.add_argument("--cells", type=int, nargs="+", default=[576, 2304, 5760])
    parser.add_argument("--by", choices=("replicates", "workloads"), default="replicates")
    args = parser.parse_args(argv)
    if not list(args.study.glob("cells/*/*/*/r*/a*/run.json")):
        parser.error(f"--study {args.study}: holds no records")
    print(f"seconds of each command, over {args.by}, and the most memory of any")
    print(f"{'cells':>7}" + "".join(f"{name:>14}" for name in COMMANDS) + f"{'all':>9}{'GB':>7}")
    for cells in args.cells:
        with tempfile.TemporaryDirectory() as folder:
            study = copies(args.study, cells, args.by, Path(folder))
            found = [spent(command, study) for command in COMMANDS]
        seconds = [each for each, _ in found]
        row = "".join(f"{each:14.1f}" for each in seconds)
        print(f"{cells:7}{row}{sum(seconds):9.1f}{max(peak for _, peak in found):7.2f}", flush=True)
    return 0
