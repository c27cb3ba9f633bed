"""Makes a dataset ready: `python -m models.data prepare NAME --root DATA`.

Exits with 0, or with 2 and one line that says why not.
"""

import argparse
import os
import sys
from pathlib import Path

from models.data import DATASETS, prepare
from models.data.base import DataError, write_json
from workflow.collocation.process_lifetime import end_with_parent


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m models.data", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("prepare", help="make data ready")
    command.add_argument("name", choices=list(DATASETS))
    command.add_argument("--root", type=Path, required=True, help="the data folder")
    command.add_argument("--source", choices=("auto", "real", "synthetic"), default="auto")
    command.add_argument("--train", type=int, help="samples to generate")
    command.add_argument("--seed", type=int, default=42)
    command.add_argument(
        "--input-size",
        type=int,
        action="append",
        default=[],
        dest="input_sizes",
        help="cache images of this size",
    )
    command.add_argument("--pin", type=Path, help="file that fixes the source for a study")
    command.add_argument("--ready", type=Path, help="write the record of the dataset here")
    command.add_argument("--tied", action="store_true", help="end with who started it")
    options = vars(parser.parse_args(arguments))
    ready, tied = options.pop("ready"), options.pop("tied")
    if tied:
        end_with_parent(os.getppid())
    try:
        record = prepare(**options)
        if ready:
            write_json(ready, record)
    except (DataError, OSError) as error:
        print(f"data: {options['name']}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    summary = f"{record['source']}, {record['train_size']:,} samples ({record['reason']})"
    line = f"data: {options['name']}: {summary}"
    # Tied, stdout is the log of a Snakemake job; people must see too which data are real.
    for stream in {sys.stdout, sys.stderr} if tied else {sys.stdout}:
        print(line, file=stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
