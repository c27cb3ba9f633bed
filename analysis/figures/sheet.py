"""What one drawing needs, as the rows of one CSV; read and written with the standard library only.

Kinds of rows: `figure` and `panel` hold settings (series: its name, label: its value), `title`,
`subtitle` and `footer` sentences (label), `basis` a number that the title rests on, `tick` the name
of a row (x, label), `line` a reference line at value, and `point` a sign: at x and value, with a
bar from low to high; points of one series are joined where `line` is a line style. `end` is the
name that stands where the series ends. Rows without an id are no measurement.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from workflow.collocation.spec.names import FORMULA, no_formula

COLUMNS = ("id", "x_id", "kind", "panel", "series", "label", "end", "colour", "marker", "line")
COLUMNS += ("fill", "x", "x_low", "x_high", "value", "low", "high", "spread", "n", "note")
WORDS = ("label", "end", "note")  # of records, some
NUMBERS = ("x", "x_low", "x_high", "value", "low", "high", "n")


def _drawn(text: str) -> str:
    """A text of the CSV as it is drawn: what stands before a formula goes, a $ begins no TeX."""
    text = text[1:] if text[:1] == "'" and text[1:2] in FORMULA else text
    return text.replace("$", r"\$")


class Sheet:
    """The rows of one figure, in drawing order. Estimates are given, never computed."""

    def __init__(self, **settings: object):
        self.rows: list[dict[str, object]] = []
        for name, value in settings.items():
            self._add("figure", series=name, label=value)

    def _add(self, kind: str, e=None, **fields: object) -> None:
        """A row, with the numbers of an estimate where one is given."""
        numbers = ("id", "value", "low", "high", "spread", "n", "note") if e else ()
        row = dict.fromkeys(COLUMNS, "") | {"kind": kind} | fields
        self.rows.append(row | {name: getattr(e, name) for name in numbers})

    def text(self, kind: str, sentence: str) -> None:
        """A title, subtitle or footer."""
        self._add(kind, label=sentence)

    def basis(self, *estimates) -> None:
        """The numbers that the title rests on."""
        for e in estimates:
            self._add("basis", e)

    def panel(self, name: str, **settings: object) -> str:
        """A panel with its settings (analysis.figures.draw says which there are)."""
        for key, value in ({"title": ""} | settings).items():
            self._add("panel", panel=name, series=key, label=value)
        return name

    def tick(self, panel: str, x: float, label: str) -> None:
        """The name of a row."""
        self._add("tick", panel=panel, x=x, label=label)

    def line(self, panel: str, e=None, end: str = "") -> None:
        """A reference line at an estimate's value, or at 1: no gain, no slowdown."""
        self._add("line", e, panel=panel, value=1, end=end)

    def point(self, panel: str, e, series: str, x: float | None = None, at=None, **fields) -> None:
        """A number as a sign, at x or at another estimate's value; fields: end, colour, marker,
        line, fill, and of what is no estimate (None) its label, value, low and high.
        """
        where = {"x_id": at.id, "x": at.value, "x_low": at.low, "x_high": at.high} if at else {}
        self._add("point", e, panel=panel, series=series, **{"x": x} | where, **fields)

    def csv(self) -> str:
        """As text; the same rows give the same text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow(row | {name: no_formula(str(row[name])) for name in WORDS})
        return out.getvalue()

    @classmethod
    def read(cls, path: Path) -> Sheet:
        """Of a CSV. Raises OSError, or ValueError where it is no such file."""
        sheet = cls()
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if tuple(row) != COLUMNS:
                    raise ValueError(f"{path}: not the data of a figure")
                for name in NUMBERS:
                    row[name] = float(row[name]) if row[name] else None
                for name in WORDS:
                    row[name] = _drawn(row[name])
                sheet.rows.append(row)
        return sheet

    def of(self, kind: str, panel: str | None = None) -> Iterator[dict]:
        """Rows of a kind, of one panel."""
        for row in self.rows:
            if row["kind"] == kind and panel in (None, row["panel"]):
                yield row

    def settings(self, panel: str = "") -> dict[str, str]:
        """Those of a panel, or of the figure."""
        kind = "panel" if panel else "figure"
        return {row["series"]: row["label"] for row in self.of(kind, panel)}

    def panels(self) -> list[str]:
        return list(dict.fromkeys(row["panel"] for row in self.of("panel")))
