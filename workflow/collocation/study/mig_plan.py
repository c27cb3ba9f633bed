"""`make mig-plan`: how the MIG cells of a study would divide this card, without touching it.

The profile table is read from the card, also while MIG mode is off, or from a file that --table
(`make mig-table`) wrote on another machine. --json writes the layouts for analysis to draw.
No process of a cell imports this.
"""

import argparse
import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from workflow.collocation import ROOT, gpu
from workflow.collocation.errors import ConfigError
from workflow.collocation.gpu import nvidia
from workflow.collocation.methods.base import named
from workflow.collocation.methods.evidence import NotInForce, Unsupported
from workflow.collocation.methods.mig import Mig
from workflow.collocation.methods.mig import card as cards
from workflow.collocation.methods.mig.layout import (
    NOT_KNOWN,
    Card,
    Layout,
    NoLayout,
    Part,
    layouts,
    placement_text,
)
from workflow.collocation.methods.mig.nvml import how_to_switch
from workflow.collocation.schema.load import load_config, read_values
from workflow.collocation.study.grid import Cell
from workflow.collocation.study.session import open_session

SCHEMA_VERSION = 1  # of the JSON document
TABLES = ROOT / "tests" / "cards"
WIDTH = 100
HEADING = ("  method", "layout", "placement", "SMs", "GiB")  # the last two: of each instance
NOT_IN_TABLE, NOT_YET = "-", "*"
NOTES = {
    NOT_IN_TABLE: "not in the card's table",
    NOT_YET: "known once the compute instances exist; they share their GPU instance's memory",
}


def page(study: str, cells: Iterable[Cell], card: Card, about: list[str]) -> str:
    """The layout of every MIG cell, once per scenario and method. Scenarios alike stand together.

    about: lines that say where the card's table comes from.
    """
    rows_of: dict[str, list[tuple[str, ...]]] = {}
    for cell in mig_cells(cells):
        rows_of.setdefault(cell.scenario, []).extend(_rows(cell, card))
    blocks: dict[tuple, list[str]] = {}
    for scenario, rows in rows_of.items():
        blocks.setdefault(tuple(rows), []).append(scenario)
    table = [HEADING, *(row for rows in blocks for row in rows if len(row) == len(HEADING))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    about = [*about, Mig.experimental]
    lines = [f"MIG layouts of study '{study}' on {card.name}", *_wrapped(about)]
    lines += ["", "scenario", _line(HEADING, widths)] if blocks else ["  it has no MIG cells"]
    for rows, scenarios in blocks.items():
        lines += ["", *scenarios]
        for row in rows:
            lines += [_line(row, widths)] if len(row) == len(HEADING) else _wrapped(row)
    marks = {row[3] for row in table} | {row[4] for row in table}
    notes = [f"{mark}  {note}" for mark, note in NOTES.items() if mark in marks]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _rows(cell: Cell, card: Card) -> list[tuple[str, ...]]:
    """A row for each kind of instance, or one with nothing but the reason why there is none."""
    try:
        layout = next(layouts(cell.spec.to_json(), card))
    except NoLayout as reason:
        return [(str(reason),)]
    kinds: dict[str, list[Part]] = {}
    for index in dict.fromkeys(part for part, _ in layout.seats):
        part = layout.parts[index]
        kinds.setdefault(str(part), []).append(part)
    starts = [(f"  {cell.method}", _label(layout)), *[("", "")] * (len(kinds) - 1)]
    return [start + _sizes(parts) for start, parts in zip(starts, kinds.values(), strict=True)]


def _label(layout: Layout) -> str:
    """The layout, and how many members share each instance if they do."""
    shares = Counter(layout.seats).values()
    return str(layout) + (f", {'+'.join(map(str, shares))} members" if max(shares) > 1 else "")


def _sizes(parts: list[Part]) -> tuple[str, str, str]:
    """Where GPU instances of one kind lie, and the SMs and GiB that each gives a member."""
    profile = parts[0].profile
    sms, mib = profile.sm_count, profile.memory_mib
    return (
        placement_text((part.start, part.size) for part in parts),
        NOT_YET if not parts[0].whole else NOT_IN_TABLE if sms is None else str(sms),
        NOT_IN_TABLE if mib is None else f"{mib / 1024:.2f}",
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    """Three columns of words, two of numbers."""
    words = [text.ljust(width) for text, width in zip(row[:3], widths[:3], strict=True)]
    numbers = [text.rjust(width) for text, width in zip(row[3:], widths[3:], strict=True)]
    return "  ".join([*words, *numbers])


def _wrapped(lines: Iterable[str]) -> list[str]:
    """Each line indented, and folded where it is too long."""
    wrap = textwrap.TextWrapper(
        WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    return [part for line in lines for part in wrap.wrap(line)]


# -- the same as JSON, for analysis to draw --------------------------------------------------------


def document(study: str, cells: Iterable[Cell], card: Card, source: str, read: bool) -> dict:
    """Card and layouts; what is not known is null.

    source: where the card's table comes from; read: from the card that is here. A GPU instance
    lies at `start` and takes `size` of the card's memory slices; its `slices` are of SMs, and so
    are those of its compute instances, whose `members` are indices. Where it has several, their
    SMs are not known before they exist.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "card": {
            "name": card.name,
            "slices": card.slices,
            "memory_slices": card.memory_slices,
            "read": read,
            "source": source,
        },
        "cells": [_cell(cell, card) for cell in cells],
    }


def mig_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The MIG cells among these, one of each scenario and method: ladders, then mixes, by size."""
    found = {(c.scenario, c.method): c for c in cells if named(c.method).parts}
    return sorted(
        found.values(),
        key=lambda cell: ("+" in cell.scenario, cell.n, cell.scenario, cell.method),
    )


def _cell(cell: Cell, card: Card) -> dict:
    """A cell's GPU instances, or the reason why there are none."""
    found = {"scenario": cell.scenario, "method": cell.method, "n": cell.n}
    try:
        layout = next(layouts(cell.spec.to_json(), card))
    except NoLayout as reason:
        return found | {"layout": None, "reason": str(reason), "instances": []}
    instances = [_instance(layout, index) for index in range(len(layout.parts))]
    return found | {"layout": str(layout), "reason": None, "instances": instances}


def _instance(layout: Layout, index: int) -> dict:
    """A GPU instance with its compute instances."""
    part = layout.parts[index]
    profile = part.profile
    return {
        "profile": profile.name,
        "start": part.start,
        "size": part.size,
        "slices": profile.slices,
        "sm_count": profile.sm_count,
        "memory_mib": profile.memory_mib,
        "compute": [
            {
                "slices": slices,
                "sm_count": profile.sm_count if part.whole else None,
                "members": [m for m, seat in enumerate(layout.seats) if seat == (index, number)],
            }
            for number, slices in enumerate(part.compute)
        ],
    }


# -- the card -------------------------------------------------------------------------------------


def read_card(wanted: str | int) -> tuple[gpu.Device, Card]:
    """This machine's card and its table.

    Raises ConfigError, naming tables to use instead, where there is none that this user may read;
    NotInForce where NVML does not let itself be asked.
    """
    device = None if wanted == "cpu" else gpu.find(wanted)
    missing = f"{device.name} has no MIG" if device else "there is no NVIDIA GPU to read here"
    try:
        if device and (card := cards.read(device)):
            return device, card
    except Unsupported as error:
        missing = str(error)
    known = ", ".join(str(path.relative_to(ROOT)) for path in sorted(TABLES.glob("*.json")))
    raise ConfigError(f"{missing}; give a recorded table with --card (CARD=FILE in make): {known}")


def about_card(device: gpu.Device) -> list[str]:
    """Lines on a card that was read: its MIG mode, and how to switch it on."""
    lines = [f"profile table: read from the card {device.uuid}, driver {device.driver}"]
    if nvidia.mig_enabled(device):
        return [*lines, "MIG mode: on"]
    return [*lines, f"MIG mode: off; {how_to_switch(device, on=True)}"]


def about_file(path: Path, card: Card) -> list[str]:
    """Lines on a table from a file."""
    told = f"profile table: {path} ({_kind(card)})"
    return [told, "MIG mode: not known, no card was read"]


def load_card(path: Path | str) -> Card:
    """A table from a file. Raises ConfigError: one line with file, key and what is wrong."""
    try:
        return TypeAdapter(Card).validate_json(Path(path).read_bytes(), strict=True)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise ConfigError(": ".join(filter(None, (str(path), where, said)))) from None


def dump_card(card: Card) -> str:
    """The table as JSON text, one profile a line; `load_card` reads it."""
    content = asdict(card)
    rows = ",\n".join(f"  {json.dumps(profile)}" for profile in content["profiles"])
    keys = ("name", "recorded", "source")
    head = "".join(f' "{key}": {json.dumps(content[key])},\n' for key in keys)
    return f'{{\n{head} "profiles": [\n{rows}\n ]\n}}\n'


def _kind(card: Card) -> str:
    """Where the numbers of a table from a file come from."""
    return card.source if card.recorded else "not read from a card; the file names its sources"


def record_table(device: gpu.Device, card: Card, path: Path) -> None:
    """Write the card's table with where it comes from, in the format of tests/cards.

    Raises ConfigError where that cannot be written, or there is nothing to write.
    """
    if not card.profiles:
        raise ConfigError(NOT_KNOWN.format(card.name))
    read = f"read from the card with NVML, driver {device.driver}, {datetime.now(UTC):%Y-%m-%d}"
    _write(path, dump_card(replace(card, recorded=True, source=read)))


def _write(path: Path, text: str) -> None:
    """Raises ConfigError where that cannot be done."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    table = parser.add_mutually_exclusive_group()
    table.add_argument("--card", type=Path, metavar="FILE", help="plan on this table")
    table.add_argument("--table", type=Path, metavar="FILE", help="write this card's table there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the layouts there")
    args = parser.parse_args(argv)
    if args.table and args.json:
        parser.error("--table and --json are written one at a time")
    try:
        values = read_values(args.config)
        config = load_config(values)
        if args.card:
            card = load_card(args.card)
            about, source = about_file(args.card, card), f"{args.card}: {_kind(card)}"
        else:
            device, card = read_card(config.gpu)
            about, source = about_card(device), f"read with NVML, driver {device.driver}"
        if args.table:
            record_table(device, card, args.table)
            print(f"{args.table}: the {len(card.profiles)} MIG profiles of {card.name}")
            return 0
        study = "paper" if config.study == "auto" else config.study  # as on a machine with a card
        session = open_session({**values, "study": study, "gpu": "cpu", "measure": None})
        if args.json:
            cells = mig_cells(session.cells)
            found = document(session.name, cells, card, source, read=not args.card)
            _write(args.json, json.dumps(found, indent=1) + "\n")
            print(f"{args.json}: the MIG layouts of {len(cells)} cells on {card.name}")
            return 0
    except (ConfigError, NotInForce) as error:
        print(error, file=sys.stderr)
        return 2
    print(page(session.name, session.cells, card, about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
