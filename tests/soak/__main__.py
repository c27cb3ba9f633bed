"""A soak: studies measured by the real command while processes die, hang and fill the disk. The GPU
is a stand-in, and what trains needs no torch (tests/fakes, tests/torchfree.py).

    python -m tests.soak --seed 7 --minutes 120 --folder DIR
    python -m tests.soak --seed 7 --round 12 --folder DIR      round 12 of that seed once more

What happens in a round follows from the seed and its number alone. After each run and each round
a reader (tests/soak/reader.py) looks for lies; what remains of processes, locks and
temporary files, and results that changed, are looked for too. DIR keeps the folders of rounds that
found something, and gets summary.json. Exits 1 if there was a violation.
"""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from tests.soak import plan
from tests.soak.scene import disk
from tests.soak.stage import Stage, Tally


def play(drawn: plan.Round, base: Path, tally: Tally) -> None:
    """One round from its beginning to its end; its folder stays if something was wrong."""
    print(f"round {drawn.number}: {drawn}", flush=True)
    stage = Stage(drawn, base, tally)
    with contextlib.ExitStack() as stack:
        if drawn.mount:
            stage.disk = stack.enter_context(disk(stage.folder / drawn.mount))
        stage.folder.mkdir(parents=True, exist_ok=True)
        try:
            stage.prepare()
            stage.perform()
        except Exception as error:  # the soak's own, or what it could not read
            stage.wrong(f"the soak broke: {type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            stage.studio.kill_all()
        if stage.found:
            kept = base / "kept" / stage.folder.name
            ignored = shutil.ignore_patterns(".ballast", "control", "card")
            with contextlib.suppress(shutil.Error):
                shutil.copytree(stage.folder, kept, ignore=ignored, dirs_exist_ok=True)
            (kept / "deeds.json").write_text(json.dumps(stage.deeds, indent=1))
    for folder in (stage.folder, stage.temporary, stage.locks):
        shutil.rmtree(folder, ignore_errors=True)
    tally.rounds += 1
    (base / "summary.json").write_text(json.dumps(vars(tally), indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=120, help="no round begins after these")
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args(argv)
    # Children of nohup or `&` would ignore the first two; all end what was started here, too.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tally, began, number = Tally(), time.monotonic(), arguments.round or 1
    while arguments.round or time.monotonic() < began + 60 * arguments.minutes:
        play(plan.draw(arguments.seed, number), folder, tally)
        number += 1
        if arguments.round:
            break
    print(json.dumps(vars(tally), indent=1))
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
