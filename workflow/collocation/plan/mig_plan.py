"""`make plan CARD=FILE`: how long a study takes on a card, what will not fit, how MIG divides it.

The profile table is read from the card, also while MIG mode is off, or from a file such as those in
tests/cards. No process of a cell imports this.
"""

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from workflow.collocation.sharing.mig.card import read
from workflow.collocation.sharing.mig.layout import Card, placement_text, plan

from workflow.collocation import ROOT, gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.plan import costs, fits
from workflow.collocation.plan.duration import Estimates
from workflow.collocation.plan.session import open_session, shipped
from workflow.collocation.sharing.base import named
from workflow.collocation.sharing.evidence import NotInForce, Unsupported
from workflow.collocation.sharing.mig import Mig
from workflow.collocation.sharing.mig_nvml import how_to_switch
from workflow.collocation.spec.errors import ConfigError
from workflow.collocation.spec.grid import Cell
from workflow.collocation.spec.load import check, load_config, read_values, read_yaml

TABLES = ROOT / "tests" / "cards"
ROW = "  {:<10}  {:<40}  {:<14}  {:>4}  {:>7}"
HEADING = ROW.format("method", "layout", "placement", "SMs", "GiB")  # the last two: of each
INDENT = {"initial_indent": "  ", "subsequent_indent": "    ", "break_on_hyphens": False}
NOTE = "-  not in the card's table, or known once the compute instances exist"


def page(study: str, cells: Iterable[Cell], card: Card, about: list[str]) -> str:
    """The layout of every MIG cell, once per scenario and method. Scenarios alike stand together.

    about: lines that say where the card's table comes from.
    """
    found = {(cell.scenario, cell.method): cell for cell in cells if named(cell.method).parts}
    ordered = sorted(found.values(), key=lambda c: ("+" in c.scenario, c.n, c.scenario, c.method))
    lines = [f"MIG layouts of study '{study}' on {card.name}"]
    lines += [textwrap.fill(text, 100, **INDENT) for text in (*about, Mig.experimental)]
    alike: dict[tuple, list[str]] = {}
    for scenario, of in groupby(ordered, key=lambda cell: cell.scenario):
        rows = tuple(line for cell in of for line in _lines(cell, card))
        alike.setdefault(rows, []).append(scenario)
    for rows, scenarios in alike.items():
        lines += ["", *scenarios, HEADING, *rows]
    return "\n".join([*lines, "", NOTE if found else "it has no MIG cells"])


def _lines(cell: Cell, card: Card) -> list[str]:
    """One for each kind of instance, or the reason why there is none."""
    try:
        layout = plan(cell.spec.to_json(), card)
    except Unsupported as reason:
        return [textwrap.fill(str(reason), 100, **INDENT)]
    shares = Counter(layout.seats).values()
    label = str(layout) + (f", {'+'.join(map(str, shares))} members" if max(shares) > 1 else "")
    lines = []
    for _, parts in groupby(layout.parts, key=str):
        part, *others = parts
        places = placement_text((one.start, one.size) for one in (part, *others))
        sms, mib = part.profile.sm_count if part.whole else None, part.profile.memory_mib
        sizes = sms or "-", f"{mib / 1024:.2f}" if mib else "-"
        lines.append(ROW.format(*(("", "") if lines else (cell.method, label)), places, *sizes))
    return lines


def _possible(cell: Cell, card: Card) -> bool:
    try:
        return not named(cell.method).parts or bool(plan(cell.spec.to_json(), card))
    except Unsupported:
        return False


def read_card(wanted: str | int, file: Path | None) -> tuple[Card, list[str]]:
    """The table of a file, or of this machine's card, and lines on it: whence, and the MIG mode.

    Raises ConfigError, naming tables to use instead, where there is none that this user may read;
    NotInForce where NVML does not let itself be asked.
    """
    if file and file.is_file():
        card = check(Card, read_yaml(file), str(file))
        source = card.source if card.recorded else "not read from a card"
        return card, [f"profile table: {file} ({source})", "MIG mode: not known"]
    device = None if file or wanted == "cpu" else next(iter(gpu.find(wanted)), None)
    missing = f"{file}: no such file" if file else "there is no NVIDIA GPU to read here"
    missing = f"{device.name} has no MIG" if device else missing
    try:
        if device and (card := read(device)) and card.plain:
            on = nvidia.mig_enabled(device)
            return card, [
                f"profile table: read from the card {device.uuid}, driver {device.driver}",
                "MIG mode: on" if on else f"MIG mode: off; {how_to_switch(device, on=True)}",
            ]
    except Unsupported as error:
        missing = str(error)
    known = ", ".join(str(path.relative_to(ROOT)) for path in sorted(TABLES.glob("*.json")))
    raise ConfigError(f"{missing}; give a recorded table with --card (CARD=FILE in make): {known}")


def forecast(study: str, cells: list[Cell], card: Card) -> list[str]:
    """How long a study will take on a card, its cells by method, and what each verdict costs."""
    estimates = Estimates({}, shipped)
    possible = [cell for cell in cells if _possible(cell, card)]
    seconds = {cell.id: estimates.of(cell) for cell in possible}
    refused = [cell for cell in cells if cell.id not in seconds]
    minutes = sum(seconds.values()) / 60
    guessed = sum(not estimates.knows(cell) for cell in possible)
    time = f"{minutes / 60:.1f} h" if minutes >= 57 else f"{minutes:.0f} min"
    said = f"study '{study}' on {card.name}: {len(cells)} cells, about {time} at the speed of the "
    said += "cards measured so far" + (f"; {guessed} of them are a guess" if guessed else "")
    told = [said, f"cells by method: {_counted(cells)}"]
    if refused:
        told.append(f"of these 'unsupported', for reasons below: {_counted(refused)}")
    told += fits.lines(cells, fits.peaks(shipped()), fits.divided(card))
    told = [textwrap.fill(line, 100, **INDENT) for line in told]
    return told + costs.lines(cells, seconds, {cell.id for cell in refused})


def _counted(cells: Iterable[Cell]) -> str:
    methods = Counter(cell.method for cell in cells)
    return ", ".join(f"{count} {method}" for method, count in sorted(methods.items()))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--card", type=Path, metavar="FILE", help="plan on this table")
    args = parser.parse_args(argv)
    try:
        values = read_values(args.config)
        config = load_config(values)
        card, about = read_card(config.gpu, args.card)
        study = "paper" if config.study == "auto" else config.study  # as on a machine with a card
        session = open_session({**values, "study": study, "gpu": "cpu", "measure": None})
    except (ConfigError, NotInForce) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(forecast(session.name, session.cells, card)), end="\n\n")
    print(page(session.name, session.cells, card, about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
