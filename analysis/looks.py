"""How methods look in every figure and page, and in which words a study's rows are told.

Apart from analysis.style, for pages do not need matplotlib, which takes long to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import flags
from analysis.names import family_of, method_order
from analysis.words import number_of

INK, GREY, FAINT = "#222222", "#666666", "#DDDDDD"


@dataclass(frozen=True)
class Look:
    """How a method is drawn; lightness, hatch, marker and dashes differ: greyscale is enough."""

    label: str
    short: str
    colour: str
    hatch: str
    marker: str
    dashes: tuple | str = "-"


# Hues are safe for colour-blind readers (Okabe-Ito), lightness is spread; a family has one hue.
_LONG, _SHORT, _DOTS, _MIXED = (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1))
LOOKS = {
    "serial": Look("serial (N × alone)", "serial", "#FFFFFF", "...", "_"),
    "naive": Look("naive", "naive", "#F2C14E", "////", "o"),
    "mps": Look("MPS", "MPS", "#0B5394", "", "s"),
    "mps_equal": Look("MPS, equal shares 100/N", "MPS eq.", "#7FB0DC", "..\\\\", "<", _LONG),
    "mps_overlap": Look("MPS, overlapping 200/N", "MPS ov.", "#A9CBEA", "xxx", ">", _SHORT),
    "mig": Look("MIG, N equal", "MIG", "#5BB89A", "\\\\\\\\", "^"),
    "mig_7g": Look("MIG 7g", "7g", "#BFE5D8", "----", "v"),
    "mig_4g": Look("MIG 4g", "4g", "#2F7D63", "||||", "D"),
    "mig_1g2x": Look("MIG 1g, double memory", "1g2x", "#8FD0B8", "+++", "d", _LONG),
    "mig_shared": Look("MIG, shared memory", "MIG sh.", "#D9A6C2", "+++", "P", _SHORT),
    "mig_mps": Look("MPS within MIG", "MIG+MPS", "#9A5B86", "ooo", "X", _DOTS),
}
# What the variants of a study's own are drawn with, in turn: colour, hatch, marker, dashes.
_VARIANTS = (
    ("#3E7CB8", "+++", "p", _DOTS),
    ("#9AA8D6", "||||", "h", _MIXED),
    ("#123356", "...", "d", _SHORT),
    ("#4FA3C7", "ooo", "8", _LONG),
    ("#8093AD", "----", "*", _DOTS),
)
STATUS = {
    "completed": "completed",
    "out_of_memory": "out of memory",
    "unsupported": "unsupported",
    "failed": "failed",
    "timed_out": "timed out",
    "postponed": "postponed",
    "not_run": "not run",
    "no_baseline": "no baseline",
}


def looks(methods: Iterable[str], rows: pd.DataFrame) -> dict[str, Look]:
    """The look of each method, and of serial; `rows` are the study's (of runs.parquet).

    A study's own variants of MPS are told apart by their order, and named with the share of the
    SMs where it is one for all their members. Any other unknown method is grey.
    """
    found, own = {"serial": LOOKS["serial"]}, 0
    for method in sorted(set(methods), key=method_order):
        if method in LOOKS:
            found[method] = LOOKS[method]
        elif family_of(method) == "mps":
            percents = rows.loc[rows["method"] == method, "sm_percent"].dropna().unique()
            names = _variant(method.removeprefix("mps_").replace("_", " "), percents)
            found[method] = Look(*names, *_VARIANTS[own % len(_VARIANTS)])
            own += 1
        else:
            found[method] = Look(method, method, "#AAAAAA", "**", "*", _MIXED)
    return found


def _variant(name: str, percents: Sequence[float]) -> tuple[str, str]:
    """Label and short name of a variant of MPS: `MPS 14 %`, `MPS 14 % (small)`, `MPS small`."""
    share = f"{percents[0]:.3g}" if len(percents) == 1 else None
    if share is None:
        return f"MPS {name}", f"MPS {name}"
    if name == share:
        return f"MPS {share} %", f"MPS {share} %"
    return f"MPS {share} % ({name})", f"MPS {name}"


def status_label(status: str) -> str:
    return STATUS.get(status, status.replace("_", " "))


def footer_parts(rows: pd.DataFrame) -> list[str]:
    """What was measured on what, each as a phrase; `rows` are member rows of runs.parquet.

    Study, hardware, arm, data source, replicates, window length, and how many cells are flagged.
    """

    def distinct(column: str) -> list[str]:
        return sorted(str(v) for v in rows[column].dropna().unique())

    done = rows[rows["status"] == "completed"]
    parts = [f"Study {', '.join(distinct('study'))}" if distinct("study") else ""]
    parts.append(", ".join(sorted({str(v) for v in done["hardware"].dropna()})))
    if distinct("driver"):
        parts.append(f"driver {', '.join(distinct('driver'))}")
    parts.append(f"arm {', '.join(distinct('arm'))}" if distinct("arm") else "")
    for source, phrase in (("real", "real data"), ("synthetic", "generated (synthetic) data")):
        names = sorted(rows[rows["source"] == source]["dataset"].dropna().unique())
        parts.append(f"{phrase}: {', '.join(names)}" if names else "")
    parts.append(_replicates(done))
    seconds = done[done["window"] == "window"]["window_s"].dropna()
    if len(seconds):
        low, high = f"{seconds.min():.3g}", f"{seconds.max():.3g}"
        parts.append(f"windows of {low if low == high else f'{low} to {high}'} s")
    return [part for part in (*parts, *flags.counted(rows)) if part]


def _replicates(done: pd.DataFrame) -> str:
    """`3 replicates`, or `1 to 3 replicates` where cells differ; nothing without any."""
    counts = done.groupby(["arm", "scenario", "method"])["block"].nunique()
    if counts.empty:
        return ""
    low, high = counts.min(), counts.max()
    said = number_of(high, "replicate")
    return said if low == high else f"{low} to {said}"
