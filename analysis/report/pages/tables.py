"""The one builder of tables: a DataFrame of texts and numbers as CSV and as Markdown."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from analysis.choose import TURNED, TURNS, turned
from analysis.estimates.records import flags
from analysis.estimates.table import Row
from analysis.report.pages import spelling
from analysis.report.pages.spelling import NOTHING, Spell, known, plain

MARKS = {flags.ABOVE_COUNT: r"\*", flags.LOSSES_DIFFER: "†", flags.NO_SECOND_CONTEXT: "‡"}
MARKS |= {flags.STALLED: "§", flags.HALVES_DIFFER: "¶"}
BY_IT = ("rate", "fastest_rate", "device_rate", "stp", "s", "over_fastest")  # quantities marked ‡


@dataclass(frozen=True)
class Number:
    """A place in a table for a published number, and how it is written there."""

    of: Row | None
    spell: Spell = spelling.num

    @property
    def marks(self) -> list[str]:
        """Flags of the number that a reader has to know."""
        if not known(self.of) or self.spell is spelling.how_many:
            return []
        found = [flag for flag in flags.split(self.of.flags) if flag in MARKS]
        return [f for f in found if f != flags.NO_SECOND_CONTEXT or self.of.quantity in BY_IT]


def csv(frame: pd.DataFrame) -> str:
    """As CSV: numbers with all their digits, low and high beside them, and the ids of each row."""
    found, ids = {}, []
    for title, cells in frame.items():
        if not any(isinstance(cell, Number) for cell in cells):
            found[title] = cells
            continue
        for name in ("value", "low", "high"):
            full = (getattr(cell.of, name, None) for cell in cells)
            full = ["" if x is None or x != x else f"{x:.9g}" for x in full]
            found[title if name == "value" else f"{title} {name}"] = full
        ids.append([cell.of.id if known(cell.of) else "" for cell in cells])
    if ids:
        found["id"] = [" ".join(filter(None, own)) for own in zip(*ids, strict=True)]
    return pd.DataFrame(found).to_csv(index=False, lineterminator="\n")


def _spelt(frame: pd.DataFrame, text: Callable[[object], str]) -> tuple[pd.DataFrame, list[str]]:
    """Its cells as they are written, but columns without any entry; and what their marks mean."""
    numbers = [cell for cell in frame.to_numpy().flat if isinstance(cell, Number)]
    turns = turned(number.of for number in numbers if known(number.of))

    def spelt(cell: object) -> str:
        if not isinstance(cell, Number):
            return text(cell)
        marks = "".join(MARKS[flag] for flag in cell.marks)
        return cell.spell(cell.of) + marks + TURNS * (known(cell.of) and cell.of.id in turns)

    texts = frame.map(spelt)
    texts = texts.loc[:, [not texts[title].isin(["", NOTHING]).all() for title in texts]]
    marks = dict.fromkeys(flag for number in numbers for flag in number.marks)
    notes = [f"{MARKS[flag]} {flags.meaning(flag)}." for flag in marks]
    return texts, notes + [TURNED] * bool(turns)


def markdown(frame: pd.DataFrame) -> str:
    """As Markdown, with lines below that say what marks mean."""
    texts, notes = _spelt(frame, plain)
    lines = [texts.columns, ["---"] * texts.shape[1], *texts.itertuples(index=False, name=None)]
    lines = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(lines + [line for note in notes for line in ("", note)])


def terminal(frame: pd.DataFrame) -> str:
    """As lines in columns, the first one aligned to the left, with the same lines below."""
    texts, notes = _spelt(frame, str)
    first = texts.columns[0]
    texts[first] = texts[first].str.ljust(texts[first].str.len().max())
    return "\n".join([texts.to_string(index=False), *notes]).replace("\\", "")
