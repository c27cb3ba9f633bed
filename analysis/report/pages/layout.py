"""How a table is written: a DataFrame of texts and numbers as CSV, Markdown or lines of text."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from analysis import labels
from analysis.estimates.records import flags
from analysis.estimates.table import REPLICATES, Row
from analysis.report.pages import spelling
from analysis.report.pages.spelling import NOTHING, Spelling, is_known, plain

MARKS = {
    flags.ABOVE_COUNT: r"\*",
    flags.LOSSES_DIFFER: "†",
    flags.NO_SECOND_CONTEXT: "‡",
    flags.STALLED: "§",
    flags.HALVES_DIFFER: "¶",
    flags.POWER_CAPPED: "‖",
}
# Quantities that a second CUDA context changes, and those that lower clocks do: only these are
# marked.
OF_CONTEXT = ("rate", "fastest_rate", "device_rate", "stp", "s", "over_fastest")
OF_POWER = ("rate", "job_rate", "stp", "p50_tpot_ms", "p99_tpot_ms", "p95_e2el_ms")
MARKED_QUANTITIES = {flags.NO_SECOND_CONTEXT: OF_CONTEXT, flags.POWER_CAPPED: OF_POWER}
IN_TURNS = "†"
IN_TURNS_NOTE = (
    f"{IN_TURNS} what is compared took turns (on one host at least); elsewhere each was measured "
    "by itself, and the host may have changed in between."
)


@dataclass(frozen=True)
class Number:
    """A cell of a table that shows an estimate, and how the estimate is written there."""

    estimate: Row | None
    spell: Spelling = spelling.num

    @property
    def flags(self) -> list[str]:
        """Flags of the estimate that a reader has to know."""
        if not is_known(self.estimate) or self.spell is spelling.how_many:
            return []
        quantity, marked = self.estimate.quantity, []
        for flag in flags.split(self.estimate.flags):
            if flag in MARKS and quantity in MARKED_QUANTITIES.get(flag, [quantity]):
                marked.append(flag)
        return marked


def csv(frame: pd.DataFrame) -> str:
    """A table as CSV: each number as value, low and high with nine digits, and ids of each row."""
    columns, ids = {}, []
    for title, cells in frame.items():
        if not any(isinstance(cell, Number) for cell in cells):
            columns[title] = cells
            continue
        for name in ("value", "low", "high"):
            digits = [getattr(cell.estimate, name, None) for cell in cells]
            digits = ["" if pd.isna(number) else f"{number:.9g}" for number in digits]
            columns[title if name == "value" else f"{title} {name}"] = digits
        ids.append([cell.estimate.id if is_known(cell.estimate) else "" for cell in cells])
    if ids:
        columns["id"] = [" ".join(filter(None, of_row)) for of_row in zip(*ids, strict=True)]
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")


def markdown(frame: pd.DataFrame) -> str:
    """A table as Markdown, with notes below that say what its marks mean."""
    texts, notes = _written(frame, plain)
    lines = [labels.markdown_table([texts.columns, *texts.itertuples(index=False, name=None)])]
    for note in notes:
        lines += ["", note]
    return "\n".join(lines)


def terminal(frame: pd.DataFrame) -> str:
    """A table as lines in columns, the first aligned to the left, with notes on its marks."""
    texts, notes = _written(frame, str)
    first = texts.columns[0]
    texts[first] = texts[first].str.ljust(texts[first].str.len().max())
    return "\n".join([texts.to_string(index=False), *notes]).replace("\\", "")


def _written(
    frame: pd.DataFrame, write_text: Callable[[object], str]
) -> tuple[pd.DataFrame, list[str]]:
    """Cells as texts, without columns that have no entry; and notes on the marks in them."""
    numbers = [cell for cell in frame.to_numpy().flat if isinstance(cell, Number)]
    in_turns = _in_turns(numbers)

    def write(cell: object) -> str:
        if not isinstance(cell, Number):
            return write_text(cell)
        marks = "".join(MARKS[flag] for flag in cell.flags)
        if is_known(cell.estimate) and cell.estimate.id in in_turns:
            marks += IN_TURNS
        return cell.spell(cell.estimate) + marks

    texts = frame.map(write)
    texts = texts.loc[:, [not texts[title].isin(["", NOTHING]).all() for title in texts]]
    marked = dict.fromkeys(flag for number in numbers for flag in number.flags)
    notes = [f"{MARKS[flag]} {flags.meaning(flag)}." for flag in marked]
    if in_turns:
        notes.append(IN_TURNS_NOTE)
    return texts, notes


def _in_turns(numbers: list[Number]) -> set[str]:
    """Ids of gains from interleaved cells, if other gains of the table have cells of their own."""
    gains = []
    for number in numbers:
        estimate = number.estimate
        is_gain = is_known(estimate) and estimate.quantity in ("stp", "rate_over_naive")
        if is_gain and estimate.jobs > 1:
            gains.append(estimate)
    if len({gain.design for gain in gains}) < 2:
        return set()
    return {gain.id for gain in gains if gain.design != REPLICATES}
