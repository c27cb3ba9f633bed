"""`python -m bench.sm_limits --out FOLDER`: which limits of SMs under MPS give wrong products.

One client of a private MPS daemon for each percentage makes products and holds them against
float64; `sm_limits.csv` has each, `sm_limits.md` a table by percentage. With `--train`, small
language models are trained from the same seed, too: `training.csv` has their losses by step.
Several clients run at a time, because correctness is asked and not speed; `--at-once 1` runs each
by itself. About two minutes on one card.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pandas as pd

from analysis import labels
from workflow.collocation.gpu import Device, find
from workflow.collocation.gpu.lock import device_lock, holder_text
from workflow.collocation.process_lifetime import interruptible
from workflow.collocation.sharing import mps_daemon
from workflow.collocation.sharing.evidence import require_free
from workflow.collocation.sharing.mps import LIMIT_VARIABLES

PERCENTAGES = [100, 95, 90, 85, 80, 75, 70, 65, 60, 55, 50, 45, 40, 35, 33, 30, 25, 20, 16, 15]
PERCENTAGES += [14, 12, 10]
TRAINED = [100, 50, 60]
STEPS_SHOWN = [0, 1, 3, 10, 30, 100, 299]
CLIENT_S = 120.0  # for a client to end
CLIENT = "bench.limited_client"


def run_client(
    work: str, environment: dict[str, str], options: list[str], folder: Path, percent: float
) -> list[dict]:
    """Run one client under a limit; its lines, the first of which is what it is.

    work: "products" or "training". environment: of the daemon's clients. The lines and errors of a
    client that ended early stay in `folder`.
    """
    variable, form = LIMIT_VARIABLES["sm_percent"]
    began, log = time.monotonic(), folder / f"{work}_{percent:g}.jsonl"
    variables = environment | {variable: form.format(percent)}
    with log.open("w") as output, log.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", CLIENT, work, *options],
            stdout=output,
            stderr=errors,
            env=os.environ | variables | {"COLLOCATION_PARENT": str(os.getpid())},
        )
        try:
            code = process.wait(CLIENT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    whole_lines = log.read_text("utf-8").rpartition("\n")[0]  # one that was killed may leave half
    lines = [json.loads(line) for line in whole_lines.splitlines()]
    errors = log.with_suffix(".err").read_text("utf-8", "replace").split("\n")
    ended = "" if code == 0 else f", ended early (exit code {code}): {' '.join(errors[-2:])}"
    wrong = sum(line.get("wrong_repeats", 0) > 0 for line in lines)
    print(
        f"{work} at {percent:g} %: {lines[0]['sm_count'] if lines else '?'} SMs, {wrong} wrong of "
        f"{max(0, len(lines) - 1)} lines, {time.monotonic() - began:.0f} s{ended}",
        flush=True,
    )
    return lines


def table(
    work: str, percentages: list[float], at_once: int, device: Device, run: Callable
) -> pd.DataFrame:
    """What the clients of all percentages print, a row a line; run: gets work and percentage."""
    with ThreadPoolExecutor(at_once) as pool:
        of_clients = list(pool.map(partial(run, work), percentages))
    rows = []
    for percent, lines in zip(percentages, of_clients, strict=True):
        client, *measured = lines or [{}]
        if percent < 100 and client.get("sm_count") == device.sm_count is not None:
            sys.exit(f"bench: the limit of {percent:g} % was not in force: nothing is written")
        about = {"gpu": device.name, "driver": device.driver, **client, "percent": percent}
        rows += [about | line for line in measured]
    if not rows:
        sys.exit(f"bench: no client made {work}; the folder clients has their errors")
    return pd.DataFrame(rows)


def products_text(products: pd.DataFrame) -> str:
    """How many sizes were wrong, by percentage, operation and number format."""
    first = products.iloc[0]
    kinds = products[["operation", "dtype"]].drop_duplicates().itertuples(index=False)
    kinds = [tuple(kind) for kind in kinds]
    rows = [["limit", "SMs", *(" ".join(kind) for kind in kinds)]]
    for (percent, sms), of_limit in products.groupby(["percent", "sm_count"], dropna=False):
        groups = of_limit.groupby(["operation", "dtype"])["wrong_repeats"]
        sizes = groups.agg(lambda wrong: f"{(wrong > 0).sum()} of {len(wrong)}")
        made = [sizes.get(kind, "not made") for kind in kinds]
        rows.insert(1, [f"{percent:g} %", str(sms), *made])
    return (
        f"# Products under limits of SMs: {first.gpu}, driver {first.driver}, torch {first.torch}, "
        f"cuBLAS {first.cublas}\n\nSizes with a wrong product, of those made.\n\n"
        f"{labels.markdown_table(rows)}\n"
    )


def training_text(training: pd.DataFrame) -> str:
    """Losses at some steps, by width of the model and percentage."""
    rows = [["width", "limit", *(f"step {step}" for step in STEPS_SHOWN)]]
    for (width, percent), of_client in training.groupby(["width", "percent"]):
        losses = of_client.set_index("step")["loss"].reindex(STEPS_SHOWN)
        rows.append([str(width), f"{percent:g} %", *losses.map("{:.4f}".format)])
    return f"\n## Losses of training in bf16\n\n{labels.markdown_table(rows)}\n"


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        "python -m bench.sm_limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="a folder")
    add("--percent", nargs="+", type=float, default=PERCENTAGES, help="limits, 100 to 10")
    add("--train", nargs="*", type=float, help="train, too; under these limits (100 50 60)")
    add("--at-once", type=int, default=8, help="clients (8)")
    add("--largest", type=int, default=6144, help="size of a product (6144)")
    add("--steps", type=int, default=300, help="of training, for each width (300)")
    args = parser.parse_args(argv)
    device = next(iter(find()), None)
    if device is None:
        parser.error("it needs an NVIDIA GPU")
    clients = args.out / "clients"
    clients.mkdir(parents=True, exist_ok=True)
    options = ["--largest", str(args.largest), "--steps", str(args.steps)]

    def refuse(holder: dict) -> None:
        sys.exit(f"bench: the card is in use by {holder_text(holder) or 'an unnamed process'}")

    with interruptible(), device_lock(device.uuid, {"bench": "sm_limits"}, refuse):
        mps_daemon.sweep()
        require_free(device, "the table of limits")
        with mps_daemon.running(device.uuid, args.out / "mps") as daemon:
            print(f"{device.name}, driver {device.driver}: the MPS daemon answers", flush=True)

            def run(work: str, percent: float) -> list[dict]:
                return run_client(work, daemon.environment, options, clients, percent)

            products = table("products", args.percent, args.at_once, device, run)
            products.to_csv(args.out / "sm_limits.csv", index=False, na_rep="nan")
            text = products_text(products)
            (args.out / "sm_limits.md").write_text(text, encoding="utf-8")
            if args.train is not None:
                training = table("training", args.train or TRAINED, args.at_once, device, run)
                training.to_csv(args.out / "training.csv", index=False, na_rep="nan")
                text += training_text(training)
                (args.out / "sm_limits.md").write_text(text, encoding="utf-8")
    print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
