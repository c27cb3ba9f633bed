"""Two studies side by side as dumbbells: what both measured, a row per cell."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from analysis import style
from analysis.compare.side_by_side import place
from analysis.names import AFTER, parse_scenario, told_window

TITLE = "Two studies side by side"
CAPTION = (
    "A row per cell that both studies measured, in one arm: throughput gain and energy per sample, "
    "and above the rate of each job alone. A bar is the 95 % interval over replicates; without one "
    "there was a single replicate. What differs between the studies stands in the table's head: "
    "values are never averaged over the two."
)
# How each side is drawn: filled and open, so that greyscale is enough.
_LOOKS = {
    "a": {"marker": "o", "mfc": "#0B5394", "mec": style.INK},
    "b": {"marker": "s", "mfc": "white", "mec": style.INK},
}
_LABELS = {"gain": "throughput gain (STP)", "energy": "energy per sample (J)"}
_LABELS |= {"alone": "alone (samples/s)"}
_LEFT, _BETWEEN, _ROW = 2.75, 0.18, 0.2  # inches
_LANES = {"a": -0.2, "b": 0.2}  # of a row's height
_LONG = 52  # characters of a label that fit on a line


def draw(
    rows: pd.DataFrame, arm: str, names: dict[str, str], foot: list[str]
) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw one arm of side_by_side.rows; `names`: what `a` and `b` are; `foot`: phrases.

    Returns the figure and the rows drawn: those of which both studies have a value.
    """
    both = rows[(rows["arm"] == arm) & rows["a"].notna() & rows["b"].notna()]
    if both.empty:
        text = f"The two studies have no cell of arm {arm} in common that both completed."
        return style.sentence(TITLE, text), both
    alone = _keys(both[both["quantity"] == "alone"])
    cells = _keys(both[both["quantity"] != "alone"])
    heights = [len(keys) * _ROW for keys in (alone, cells)]
    fig, top = style.page(
        f"{TITLE}, arm {arm}",
        "a row per cell that both completed; A above, B below",
        [Line2D([], [], ls="", ms=4.5, mew=0.7, label=names[s], **_LOOKS[s]) for s in _LOOKS],
        sum(heights) + 0.55 * sum(height > 0 for height in heights) - 0.15,
        foot,
    )
    width = style.PAGE_WIDTH - _LEFT - 0.12
    if alone:
        ax = style.place(fig, _LEFT, top, width, heights[0])
        _panel(ax, both[both["quantity"] == "alone"], alone, "alone", log=True)
        top += heights[0] + 0.55
    half = (width - _BETWEEN) / 2
    for number, quantity in enumerate(("gain", "energy")):
        if cells:
            left = _LEFT + number * (half + _BETWEEN)
            ax = style.place(fig, left, top, half, heights[1])
            _panel(ax, both[both["quantity"] == quantity], cells, quantity, log=number == 1)
            if number:
                ax.set_yticklabels([])
    return fig, both


def _keys(rows: pd.DataFrame) -> list[tuple]:
    """Scenario, method and window of each row of the figure, from top to bottom."""
    columns = ["arm", "scenario", "method", "window"]
    keys = dict.fromkeys(rows[columns].itertuples(index=False, name=None))
    return [key[1:] for key in sorted(keys, key=lambda key: (place(key[:3]), key[3] == AFTER))]


def _panel(ax: plt.Axes, rows: pd.DataFrame, keys: list[tuple], quantity: str, log: bool) -> None:
    ax.set_ylim(len(keys) - 0.5, -0.5)
    ax.set_yticks(range(len(keys)), [_label(*key) for key in keys])
    for text in ax.get_yticklabels():
        text.set(linespacing=0.95, size=5 if "\n" in text.get_text() else style.SMALL)
    ax.set_xlabel(_LABELS[quantity], labelpad=2)
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    for y in range(1, len(keys), 2):
        ax.axhspan(y - 0.5, y + 0.5, color="#F4F4F4", lw=0, zorder=0)
    if rows.empty:
        ax.set_xticks([])
        ax.text(0.5, 0.5, "not measured by both", transform=ax.transAxes, ha="center", va="center")
        return
    for row in rows.to_dict("records"):
        y = keys.index((row["scenario"], row["method"], row["window"]))
        lanes = {side: y + shift for side, shift in _LANES.items()}
        ax.plot([row["a"], row["b"]], lanes.values(), color=style.GREY, lw=0.8, zorder=2)
        for side, lane in lanes.items():
            if pd.notna(row[f"{side}_low"]):
                ends = [row[f"{side}_low"], row[f"{side}_high"]]
                ax.plot(ends, [lane] * 2, color=style.INK, lw=0.8, zorder=3)
            ax.plot([row[side]], [lane], ls="", ms=3.8, mew=0.6, zorder=4, **_LOOKS[side])
    ax.margins(x=0.08)
    if log:
        ax.set_xscale("log")
        low, high = ax.get_xlim()
        narrow = MaxNLocator(4).tick_values(low, high)
        wide = LogLocator(subs=(1, 2, 5)).tick_values(low, high)
        ticks = [tick for tick in (narrow if high < 8 * low else wide) if low <= tick <= high]
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.axvline(1, color=style.GREY, lw=0.6, ls=(0, (4, 2)), zorder=1)
        ax.set_xlim(left=0)


def _label(scenario: str, method: str, window: str) -> str:
    """`2× a, MPS`; in two lines where one is too short."""
    short = style.LOOKS[method].short if method in style.LOOKS else method
    words = [parse_scenario(scenario).label, short]
    text = ", ".join(filter(None, [*words, told_window(window)]))
    return text if len(text) <= _LONG else text.replace(" + ", "\n+ ", 1)
