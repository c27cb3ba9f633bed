"""What one drawing needs, as the rows of one CSV; read and written with the standard library only.

Kinds of rows: `figure` and `panel` hold settings (series: its name, label: its value), `title`,
`subtitle` and `footer` sentences (label), `basis` a number that the title rests on, `tick` the name
of a row (x, label), `line` a reference line at value, and `point` a sign: at x and value, with a
bar from low to high; points of one series are joined where `line` is a line style. `end` is the
name that stands where the series ends.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

COLUMNS = ("id", "x_id", "kind", "panel", "series", "label", "end", "colour", "marker", "line")
COLUMNS += ("fill", "x", "x_low", "x_high", "value", "low", "high", "spread", "n", "note")
NUMBERS = ("x", "x_low", "x_high", "value", "low", "high", "n")


class Sheet:
    """The rows of one figure, in drawing order. Estimates are given, never computed."""

    def __init__(self, **settings: object):
        self.rows: list[dict[str, object]] = []
        for name, value in settings.items():
            self._add("figure", series=name, label=value)

    def _add(self, kind: str, **fields: object) -> dict[str, object]:
        row = dict.fromkeys(COLUMNS, "") | {"kind": kind}
        row |= {name: "" if value is None else value for name, value in fields.items()}
        self.rows.append(row)
        return row

    def text(self, kind: str, sentence: str) -> None:
        """A title, subtitle or footer."""
        if sentence:
            self._add(kind, label=sentence)

    def basis(self, *estimates) -> None:
        """The numbers that the title rests on."""
        for e in estimates:
            self._add("basis", **_numbers(e))

    def panel(self, name: str, **settings: object) -> str:
        """A panel with its settings (analysis.figures.draw says which there are)."""
        for key, value in ({"title": ""} | settings).items():
            self._add("panel", panel=name, series=key, label=value)
        return name

    def tick(self, panel: str, x: float, label: str) -> None:
        """The name of a row."""
        self._add("tick", panel=panel, x=x, label=label)

    def line(self, panel: str, e, end: str) -> None:
        """A reference line at an estimate's value."""
        self._add("line", panel=panel, end=end, **_numbers(e))

    def mark(self, panel: str, value: float, end: str = "") -> None:
        """A reference line that is no measurement: no gain, no slowdown."""
        self._add("line", panel=panel, value=value, end=end)

    def point(
        self, panel: str, e, series: str, x: float | None = None, at=None, **look: str
    ) -> None:
        """A number as a sign, at x or at another estimate's value; look: label, end, colour,
        marker, line, fill.
        """
        place = {"x": x}
        if at is not None:
            place = {"x_id": at.id, "x": at.value, "x_low": at.low, "x_high": at.high}
        self._add("point", panel=panel, series=series, **place, **_numbers(e), **look)

    def segment(self, panel: str, series: str, x: float, value: float, **look: str) -> None:
        """A sign that is no measurement: a place in a layout."""
        self._add("point", panel=panel, series=series, x=x, value=value, **look)

    @property
    def empty(self) -> bool:
        return not any(row["kind"] == "point" for row in self.rows)

    def csv(self) -> str:
        """As text; the same rows give the same text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: repr(v) if isinstance(v, float) else v for name, v in row.items()}
            for row in self.rows
        )
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


def _numbers(e) -> dict[str, object]:
    fields = ("id", "value", "low", "high", "spread", "n", "note")
    return {name: getattr(e, name) for name in fields}


def update(path: Path, text: str) -> bool:
    """Write a file only if its content changes: what depends on it is then not made anew."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return True
