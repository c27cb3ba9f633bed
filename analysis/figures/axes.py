"""Limits and ticks of a panel's axes."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

FORMATS = {
    "percent": lambda v: f"{100 * v:g} %",
    "times": lambda v: f"{v:g}",
    "": lambda v: f"{v:g}",
}


def limits(
    axes: Axes, panel: dict, points: list[dict], lines: list[dict], rows: list[dict]
) -> None:
    """Scales and limits, so that all signs and bars lie within."""

    def ends(*names: str) -> list[float]:
        found = [row[name] for row in points for name in names]
        return [v for v in found if v is not None]

    x, y = ends("x", "x_low", "x_high"), ends("value", "low", "high")
    y += [row["value"] for row in lines]
    if panel.get("aspect") == "square":
        x = y = x + y
        axes.set_box_aspect(1)
    if panel.get("rows"):
        x, y = y, x
    for name, values, which in (("x", x, axes.set_xlim), ("y", y, axes.set_ylim)):
        if name == "y" and panel.get("rows"):
            continue
        log = panel.get(f"{name}scale") == "log" and min(values) > 0
        getattr(axes, f"set_{name}scale")("log" if log else "linear")
        low, high = min(values), max(values)
        if given := panel.get(f"{name}lim"):
            low, high = (float(v) for v in given.split(","))
        elif log:
            margin = max((high / low) ** 0.05, 1.06)
            low, high = low / margin, high * margin
        else:
            low = 0 if panel.get("zero") else low
            margin = 0.06 * (high - low) or 1
            low, high = (low if panel.get("zero") else low - margin), high + margin
        which(low, high)
    if panel.get("rows") == "yes":
        axes.set_ylim(max(row["x"] for row in rows) + 0.7, 0.3)


def ticks(axes: Axes, panel: dict, points: list[dict], rows: list[dict]) -> None:
    """Ticks at round numbers, at the counts that were measured, or at the rows' names."""
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if name == "y" and panel.get("rows"):
            continue
        low, high = sorted(axis.get_view_interval())
        kind = panel.get("format" if name == "y" else "xformat", "")
        if panel.get(f"{name}ticks") == "points":
            axis.set_major_locator(FixedLocator(_thinned(sorted({row["x"] for row in points}))))
        elif axis.get_scale() == "log":
            axis.set_major_locator(FixedLocator(round_numbers(low, high)))
        elif kind == "time":
            unit = _unit(high)[0]
            axis.set_major_locator(
                FixedLocator(
                    [
                        unit * v
                        for v in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(
                            low / unit, high / unit
                        )
                    ]
                )
            )
        else:
            axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        form = _time(high) if kind == "time" else _thousands(high) if kind == "k" else FORMATS[kind]
        axis.set_major_formatter(FuncFormatter(lambda v, _, form=form: form(v)))
    if panel.get("rows") == "yes":
        axes.set_yticks([row["x"] for row in rows], [row["label"] for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    elif panel.get("rows") == "share":
        axes.tick_params(axis="y", length=0, labelleft=False)
        axes.spines["left"].set_visible(False)


def _time(high: float):
    """Seconds in the unit that the largest asks for."""
    unit, name = _unit(high)
    return lambda v: f"{v / unit:.3g} {name}"


def _unit(high: float) -> tuple[int, str]:
    return (3600, "h") if high > 7200 else (60, "min") if high > 300 else (1, "s")


def _thousands(high: float):
    """57,900 as 58k where the axis ends at 10,000 or more."""
    return (lambda v: f"{v / 1000:g}k" if v else "0") if high >= 10_000 else (lambda v: f"{v:,.0f}")


def _thinned(values: list[float]) -> list[float]:
    """Counts that are far enough apart on a logarithmic axis to be written."""
    if len(values) < 2:
        return values
    least = (values[-1] / values[0]) ** 0.06
    kept = values[:1]
    kept += [v for before, v in zip(values, values[1:], strict=False) if v / before >= least]
    return kept


def round_numbers(low: float, high: float) -> list[float]:
    """Round numbers within, about five of them."""
    decades = math.log10(high / low)
    for steps in (
        (1, 1.1, 1.2, 1.3, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
        (1, 1.5, 2, 3, 5, 7),
        (1, 2, 5),
        (1, 3),
        (1,),
    ):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(found) <= 7 or decades < 0.05:
            return [float(f"{v:g}") for v in found]
    return [float(f"{v:g}") for v in found]
