"""The paper's F2: how a study's MIG layouts divide a card, SM slices above memory slices.

Reads what `python -m workflow.collocation.mig_plan --json FILE` planned from the card's own table:
where each GPU instance lies in memory slices, and how many SM slices it has.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import Patch, Rectangle

from analysis import style
from analysis.cells import Study
from analysis.names import method_order, parse_scenario
from analysis.words import number_of

TITLE = "MIG layouts"
CAPTION = (
    "The layouts that the study's MIG cells use, planned from the card's profile table: above, the "
    "card's SM slices with the members and SMs of each compute instance, below, its memory slices "
    "with the profile and memory of each GPU instance. Where an instance lies among the memory "
    "slices is its real placement; which SMs the driver gives it is not known before it exists, so "
    "its SM slices stand above the start of its memory. Cells that share a layout are listed below "
    "it. What no instance takes is hatched: MIG leaves it idle. Slices are not equal parts of the "
    "card: SMs and memory are those of the table; ? is a number that it does not have, or that is "
    "not known before the compute instances exist."
)
SCHEMA_VERSION = 1
_COLUMNS = ["layout", "used_by", "instance", "profile", "start", "size", "slices", "sm_count"]
_COLUMNS += ["memory_mib", "compute_instance", "compute_slices", "compute_sm_count", "members"]
_COLUMNS += ["reason"]
_ACROSS = 2
# Inches: a strip of slices, margins of a map, and a line of text below it.
_STRIP, _LEFT, _RIGHT, _HEAD, _GAP, _TEXT_LINE = 0.26, 0.5, 0.08, 0.2, 0.14, 0.095
_SMALL = 5.0  # points
_TINTS = ("#BFE5D8", "#5BB89A")  # of instances side by side; MIG's hue
_FREE = {"fc": "white", "ec": "#999999", "hatch": "////", "lw": 0.4, "ls": (0, (2, 2))}


class LayoutsError(Exception):
    """A file of layouts that cannot be used: one line with the file and what is wrong."""


@dataclass(frozen=True)
class Map:
    """A layout and the cells that use it; instances are those of the file."""

    name: str
    instances: list[dict]
    jobs: list[str]  # by member: its model in a mix, else nothing
    users: list[str]


def read(path: Path) -> dict:
    """What is in the file: `card` and `cells`, as workflow.collocation.mig_maps describes them.

    Raises LayoutsError.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LayoutsError(f"{path}: cannot be read: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise LayoutsError(f"{path}: schema_version is {version!r}, not {SCHEMA_VERSION}")
    return content


def maps(content: dict) -> list[Map]:
    """The layouts of a file, each once, in order of method and count."""
    cells = [cell for cell in content["cells"] if cell["instances"]]
    cells.sort(
        key=lambda c: (parse_scenario(c["scenario"]).mixed, method_order(c["method"]), c["n"])
    )
    found: dict[str, Map] = {}
    for cell in cells:
        scenario = parse_scenario(cell["scenario"])
        jobs = [name.split("_")[0] for name, count in scenario.parts for _ in range(count)]
        jobs = jobs if scenario.mixed else [""] * len(jobs)
        seats = [[[jobs[m] for m in c["members"]] for c in i["compute"]] for i in cell["instances"]]
        one = Map(cell["layout"], cell["instances"], jobs, [])
        known = found.setdefault(json.dumps([cell["instances"], seats]), one)
        user = _user(cell["method"], cell["scenario"])
        if user not in known.users:
            known.users.append(user)
    return list(found.values())


def _user(method: str, scenario: str) -> str:
    """A method, and how many jobs or which mix."""
    parsed, look = parse_scenario(scenario), style.LOOKS[method]
    if not parsed.mixed:
        return f"{look.label}: {parsed.n}×"
    # The label of `mig` says that all instances are alike, which those of a mix are not.
    name = look.short if method == "mig" else look.label
    return f"{name}: {' + '.join(f'{count}× {job}' for job, count in parsed.parts)}"


def draw(study: Study, arm: str | None = None) -> tuple[plt.Figure, pd.DataFrame]:
    """Draw the layouts of a study, which are the same in all arms; returns the figure and one row
    per compute instance, and per cell that the card cannot be divided for.
    """
    path = study.mig_layouts
    none = pd.DataFrame(columns=_COLUMNS)
    if path is None or not path.exists():
        return style.sentence(TITLE, "No MIG layouts were planned for this study."), none
    try:
        return figure(read(path), study)
    except LayoutsError as error:
        return style.sentence(TITLE, str(error)), none


def figure(content: dict, study: Study) -> tuple[plt.Figure, pd.DataFrame]:
    """The same from a file's content."""
    card, found, refused = content["card"], maps(content), _refused(content)
    if not found and not refused:
        return style.sentence(TITLE, "The study has no MIG cells."), pd.DataFrame(columns=_COLUMNS)
    width = style.PAGE_WIDTH / _ACROSS - _LEFT - _RIGHT
    columns = int((style.PAGE_WIDTH / _ACROSS - _RIGHT) * 72 / (0.54 * _SMALL))
    below = [_folded(one.users, columns) for one in found]
    lines = [below[i : i + _ACROSS] for i in range(0, len(below), _ACROSS)]
    heights = [_HEAD + 2 * _STRIP + _TEXT_LINE * max(map(len, line)) + _GAP for line in lines]
    told = _folded(refused, int(style.PAGE_WIDTH * 72 / (0.54 * _SMALL)))
    read_from = "read from the card" if card["read"] else "recorded in a file"
    elsewhere = study.hardware and study.hardware != card["name"]
    fig, top = style.page(
        f"{TITLE} on {card['name']}",
        f"{card['slices']} SM slices above {card['memory_slices']} memory slices; "
        f"profile table {read_from}",
        [
            Patch(fc=_TINTS[0], ec=style.INK, lw=0.5, label="instances, in two tints"),
            Patch(label="in no instance", **_FREE),
        ],
        sum(heights) + _TEXT_LINE * len(told) - 0.16,
        [
            f"planned for study {content['study']}",
            f"profile table: {card['source']}",
            f"measured cells of this study ran on {study.hardware}" if elsewhere else "",
        ],
    )
    for i, (one, users) in enumerate(zip(found, below, strict=True)):
        line, column = divmod(i, _ACROSS)
        left = column * style.PAGE_WIDTH / _ACROSS + _LEFT
        at = top + sum(heights[:line]) + _HEAD - 0.14
        ax = style.place(fig, left, at, width, 2 * _STRIP)
        _draw_map(ax, one, card)
        _write(fig, left, at + 2 * _STRIP + 0.03, users)
    _write(fig, 0.07, top + sum(heights) - 0.12, told)
    return fig, _drawn(found, content)


def _refused(content: dict) -> list[str]:
    """Why cells have no layout, each reason once with the cells that it befell."""
    users: dict[str, list[str]] = {}
    for cell in content["cells"]:
        if cell["reason"]:
            users.setdefault(cell["reason"], []).append(cell["scenario"])
    return [
        f"no layout for {number_of(len(who), 'cell')}: {reason}" for reason, who in users.items()
    ]


def _folded(lines: list[str], columns: int) -> list[str]:
    wrap = textwrap.TextWrapper(columns, subsequent_indent="    ", break_on_hyphens=False)
    return [part for line in lines for part in wrap.wrap(line)]


def _write(fig: plt.Figure, left: float, top: float, lines: list[str]) -> None:
    """Lines of small text at a place in inches."""
    w, h = fig.get_size_inches()
    look = {"size": _SMALL, "color": style.GREY, "va": "top", "linespacing": 1.25}
    fig.text(left / w, 1 - top / h, "\n".join(lines), **look)


def _draw_map(ax: plt.Axes, one: Map, card: dict) -> None:
    """SM slices in the upper strip, memory slices in the lower."""
    total, memory = card["slices"], card["memory_slices"]
    ax.set(xlim=(0, memory), ylim=(0, 2))
    ax.set_axis_off()
    for row, count in ((1, total), (0, memory)):
        for i in range(count):
            ax.add_patch(Rectangle((i, row + 0.06), 1, 0.88, clip_on=False, **_FREE))
    for row, name in ((1, "SMs"), (0, "memory")):
        ax.text(-0.08, row + 0.5, name, ha="right", va="center", size=_SMALL)
    order = sorted(one.instances, key=lambda instance: instance["start"])
    for i, (instance, start) in enumerate(zip(order, _sm_starts(order, total), strict=True)):
        tint = _TINTS[i % 2]
        gib = f"{instance['memory_mib'] / 1024:.1f} GiB" if instance["memory_mib"] else "? GiB"
        said = instance["profile"], gib
        _block(ax, (instance["start"], 0), instance["size"], said, tint, wide=1.0)
        for compute in instance["compute"]:
            sms = compute["sm_count"]
            said = _members(one, compute), f"{'?' if sms is None else sms} SMs"
            _block(ax, (start, 1), compute["slices"], said, tint, wide=0.6)
            start += compute["slices"]
    ax.set_title(one.name, loc="left", weight="bold", pad=1.5, size=style.SMALL)
    ax.set_title(_idle(one, card), loc="right", pad=1.5, size=_SMALL, color=style.GREY)


def _sm_starts(order: list[dict], total: int) -> list[int]:
    """Where the SM slices of instances, by place, are drawn: above the start of their memory, as
    far as there is room.
    """
    starts, free = [], 0
    left = sum(instance["slices"] for instance in order)
    for instance in order:
        starts.append(max(free, min(instance["start"], total - left)))
        free = starts[-1] + instance["slices"]
        left -= instance["slices"]
    return starts


def _members(one: Map, compute: dict) -> str:
    """Who sits in a compute instance: how many jobs, or which of a mix."""
    names = list(dict.fromkeys(one.jobs[member] for member in compute["members"]))
    count = len(compute["members"])
    if not all(names):
        return number_of(count, "job")
    return " + ".join(names) if count == len(names) else f"{count}× {' + '.join(names)}"


def _block(
    ax: plt.Axes, at: tuple[float, float], slices: int, said: tuple, tint: str, wide: float
) -> None:
    """A run of slices with two lines of text; wide: line width of its edge."""
    x, row = at
    look = {"fc": tint, "ec": style.INK, "lw": wide}
    ax.add_patch(Rectangle((x, row + 0.06), slices, 0.88, zorder=2, clip_on=False, **look))
    room = slices * ax.get_position().width * style.PAGE_WIDTH / ax.get_xlim()[1] - 0.03
    size = _SMALL * min(1.0, room / (max(map(len, said)) * 0.62 * _SMALL / 72))
    ax.text(
        *(x + slices / 2, row + 0.49),
        "\n".join(said),
        ha="center",
        va="center",
        size=size,
        linespacing=1.0,
        zorder=3,
    )


def _idle(one: Map, card: dict) -> str:
    """What the layout leaves, of which the table knows for certain."""
    slices = card["slices"] - sum(sum(c["slices"] for c in i["compute"]) for i in one.instances)
    memory = card["memory_slices"] - sum(instance["size"] for instance in one.instances)
    parts = [f"{slices} SM" if slices else "", f"{memory} memory" if memory else ""]
    told = " and ".join(part for part in parts if part)
    return f"idle: {told} slice{'s' if slices + memory > 1 else ''}" if told else ""


def _drawn(found: list[Map], content: dict) -> pd.DataFrame:
    rows = []
    for one in found:
        for number, instance in enumerate(one.instances):
            names = ("profile", "start", "size", "slices", "sm_count", "memory_mib")
            base = {"layout": one.name, "used_by": "; ".join(one.users), "instance": number}
            base |= {name: instance[name] for name in names}
            for order, compute in enumerate(instance["compute"]):
                own = {"compute_instance": order, "compute_slices": compute["slices"]}
                own |= {"compute_sm_count": compute["sm_count"]}
                rows.append(base | own | {"members": len(compute["members"])})
    rows += [
        {"used_by": _user(cell["method"], cell["scenario"]), "reason": cell["reason"]}
        for cell in content["cells"]
        if cell["reason"]
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)
