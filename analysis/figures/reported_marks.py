"""The paper's values beside ours: hollow marks at the right of a slot."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from analysis import style
from analysis.cells import Study
from analysis.figures import marks
from analysis.figures.slots import Panels, Place, Slot
from analysis.names import parse_scenario

_ARM = "faithful"
_MARKERS = {"LEC22": "<", "SLIDES": "D", "SUIT25": "v"}
_LOOK = {"ms": 3.0, "mfc": "white", "mec": style.INK, "mew": 0.6}


# (workloads, sorted; n; method) → (source, lowest, highest of the members)
Values = dict[tuple[tuple[str, ...], int, str], list[tuple[str, float, float]]]


def values(study: Study, arm: str, metric: str) -> Values:
    """What the paper's sources say of a metric; nothing beside an arm that it did not train."""
    found: Values = {}
    if study.reported is None or arm != _ARM:
        return found
    rows = study.reported
    own = rows[(rows["metric"] == metric) & (rows["kind"] != "text") & rows["value"].notna()]
    for (names, n, method, source), group in own.groupby(["workload", "n", "method", "source"]):
        least, most = float(group["value"].min()), float(group["value"].max())
        for name in names.split():
            place = tuple(sorted(name.split("+"))), int(n), method
            found.setdefault(place, []).append((source, least, most))
    return found


def of(slot: Slot, found: Values) -> list[tuple[str, float, float]]:
    """Those of a slot: (source, lowest, highest); of the default variant, which the paper ran."""
    parsed = parse_scenario(slot.scenario)
    if parsed.variant or len({count for _, count in parsed.parts}) > 1:
        return []
    names = tuple(sorted(name for name, _ in parsed.parts))
    return found.get((names, parsed.n, slot.method), [])


def draw(ax: plt.Axes, place: Place, found: Values, scale: float) -> None:
    """Marks at the right edge of a slot, joined between the lowest and the highest; scale: of one
    of theirs in units of the axis.
    """
    for source, low, high in of(place.slot, found):
        ends = sorted({low * scale, high * scale})
        at = [place.left + place.width + 0.02] * len(ends)
        look = {"color": style.INK, "lw": 0.5, "marker": _mark(source), "zorder": 6}
        marks.strokes(ax, at, ends, **look, **_LOOK)


def handles(shown: Panels, found: Values, said: dict[str, str]) -> list:
    """Legend entries of the sources that are drawn; said: source → what must be said of it."""
    slots = [slot for own in shown.values() for slot in own]
    sources = {source for slot in slots for source, _, _ in of(slot, found)}
    return [
        Line2D([], [], ls="", marker=_mark(s), label=f"reported ({s}{said.get(s, '')})", **_LOOK)
        for s in sorted(sources)
    ]


def _mark(source: str) -> str:
    return _MARKERS.get(source, "p")
