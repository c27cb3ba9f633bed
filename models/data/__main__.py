"""`python -m models.data prepare NAME --root DATA`: exit 0, or 2 with one line saying why not."""

import argparse
import os
import sys
from pathlib import Path

from models.data import DATASETS
from models.data.prepare import SOURCES, prepare
from models.data.storage import DataError, write_json
from models.protocol import die_with_parent


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m models.data", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare", help="make a dataset ready")
    command.add_argument("name", choices=list(DATASETS))
    command.add_argument("--root", type=Path, required=True, help="the data folder")
    command.add_argument("--source", choices=SOURCES, default="auto")
    command.add_argument("--train", type=int, help="samples to generate (Criteo: to read)")
    command.add_argument("--validation", type=int, help="the same for validation")
    command.add_argument("--seed", type=int, default=42)
    command.add_argument(
        "--input-size", type=int, action="append", default=[], help="cache for this size"
    )
    command.add_argument("--pin", type=Path, help="file that fixes the source for a study")
    command.add_argument("--ready", type=Path, help="write the record of the dataset here")
    command.add_argument("--tied", action="store_true", help="end with who started it")
    options = parser.parse_args(arguments)
    if options.tied:
        die_with_parent(os.getppid())
    try:
        record = prepare(
            DATASETS[options.name],
            options.root,
            source=options.source,
            train=options.train,
            validation=options.validation,
            seed=options.seed,
            input_sizes=options.input_size,
            pin=options.pin,
        )
        if options.ready:
            write_json(options.ready, record)
    except (DataError, OSError) as error:
        line = " ".join(str(error).split())
        print(f"data: {options.name}: {line}", file=sys.stderr)
        return 2
    sizes = f"{record['train_size']:,} + {record['validation_size']:,} samples"
    line = f"data: {options.name}: {record['source']}, {sizes} ({record['reason']})"
    print(line)
    if options.tied:  # stdout is its log; who watches must know what is real
        print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
