"""What figures choose from estimates: sets of jobs alike, their looks, the sentences below."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis import choose, labels
from analysis.estimates.schema import INTERVAL, RANGE, Estimate
from analysis.estimates.table import Estimates
from analysis.figures.sheet import Sheet
from workflow.collocation.spec.names import PAPER_ARM, family_of, parse_scenario

# Methods that are drawn, and how their lines look. Shares of SMs under MPS are in tables.
WAYS = ("naive", "mps", "mig")
DASHES = {"naive": "--", "mps": "-", "mig": "-."}
# Workloads, in the order in which they come: hue, lightness and sign differ.
HUES = ("#0B5394", "#5C9BD5", "#2A9D8F", "#E0A224", "#A1372D", "#555555")
SIGNS = ("o", "s", "^", "D", "v", "P")
MOST = 6  # panels of a figure, or lines of a panel
NO_GPU = "this study has no readings of a GPU"
NO_MEMORY = "GPU memory could not be read: there was no GPU, or all sets took turns"
# A row for each name, numbers across, relative to one job alone.
ROWS = {"xscale": "log", "rows": "yes"}


@dataclass(frozen=True)
class Study:
    """A study's estimates and name."""

    t: Estimates
    name: str

    @classmethod
    def read(cls, folder: Path) -> Study:
        """Raises OSError or ValueError where there are no estimates."""
        return cls(Estimates.read(folder / "estimates.parquet"), folder.resolve().name)

    @property
    def arm(self) -> str:
        """The paper's arm, or the study's first."""
        arms = self.t.arms()
        return PAPER_ARM if PAPER_ARM in arms or not arms else arms[0]

    @property
    def data(self) -> str:
        """Whether the jobs read real data."""
        counts = (e for e in self.t.of("count") if e.name.startswith("data_"))
        kinds = {e.note.partition(": ")[2] for e in counts}
        if "real" in kinds:
            return "real data" if len(kinds) == 1 else "partly generated data"
        return "generated data" if kinds else ""

    def lacking(self, why: str = "") -> str:
        """Why there is nothing to draw: no set was measured in the figures' arm, or else `why`."""
        none = f"no set of jobs alike was measured in {labels.arm(self.arm)}"
        return why if why and self.fullest("stp") else none

    def alike(self, quantity: str, **where: str) -> dict[str, list[Estimate]]:
        """Of sets of one workload without variants, in plain windows: workload → its numbers."""
        return choose.copies(self.t, quantity, **where)

    def fullest(
        self, quantity: str, most: int = MOST, share: float = 1 / 3
    ) -> dict[str, list[Estimate]]:
        """The workloads with the most sets of two jobs or more, at most so many, in their order.

        A workload with so small a share of the sets of another, or less, is left out.
        """
        found = {
            workload: [e for e in numbers if e.method in WAYS]
            for workload, numbers in self.alike(quantity, arm=self.arm).items()
        }
        sets = {w: sum(e.jobs > 1 for e in numbers) for w, numbers in found.items()}
        least = max(sets.values(), default=0) * share
        ranked = sorted((w for w in found if sets[w] > least), key=lambda w: -sets[w])
        return {w: found[w] for w in found if w in ranked[:most]}


def by_method(numbers: list[Estimate]) -> dict[str, list[Estimate]]:
    """Of WAYS, by number of jobs."""
    found = {way: [e for e in numbers if e.method == way] for way in WAYS}
    return {way: sorted(each, key=lambda e: e.jobs) for way, each in found.items() if each}


def main_way(numbers: list[Estimate]) -> str:
    """The method that is named: MPS where it was measured."""
    ways = by_method(numbers)
    return "mps" if "mps" in ways else next(iter(ways))


def look(e: Estimate) -> dict[str, str]:
    """Colour, sign and line of a method; hollow where there is one replicate."""
    line = DASHES.get(family_of(e.method), ":")
    return {"colour": labels.colour(e.method), "marker": labels.marker(e.method)} | {
        "line": line,
        "fill": "hollow" if e.n == 1 else "",
    }


def sign(sheet: Sheet, panel: str, e: Estimate, row: float) -> None:
    """A number in a row of its own, not joined to others."""
    sheet.point(panel, e, labels.method(e.method), row, **look(e) | {"line": ""})


def path(
    sheet: Sheet, panel: str, numbers: list[Estimate], name: str, end: str = "", **style: str
) -> None:
    """Numbers against their jobs, joined; end: the name at the last."""
    for e in numbers:
        last = end if e is numbers[-1] else ""
        sheet.point(panel, e, name, e.jobs, end=last, **look(e) | style)


def under(e: Estimate) -> str:
    """`7 × ResNet26 b32 under MPS`, `7 × ResNet26 b32 as plain processes`."""
    return f"{labels.scenario(e.scenario)} {choose.way(e.method)}"


def strokes(methods: Iterable[str]) -> str:
    """What the lines' strokes stand for: `Solid: MPS; dashed: plain processes`."""
    names = {"mps": "solid: MPS", "naive": "dashed: plain processes", "mig": "dash-dotted: MIG"}
    drawn = set(methods)
    text = "; ".join(name for way, name in names.items() if way in drawn)
    return text[:1].upper() + text[1:]


def times(numbers: Iterable[Estimate]) -> str:
    """`1.90 to 3.37 times`, or one number where the least and the most read alike."""
    values = [e.value for e in numbers]
    ends = dict.fromkeys(map(labels.number, (min(values), max(values))))
    return f"{' to '.join(ends)} times"


def nothing(sheet: Sheet, title: str, why: str) -> Sheet:
    """A drawing of one sentence."""
    sheet.text("title", title)
    sheet.text("subtitle", f"Nothing to draw: {why}.")
    return sheet


def footers(study: Study, sheet: Sheet, arms: Iterable[str] = ()) -> Sheet:
    """Add what the numbers come from, what bars and signs mean, and what was not measured.

    arms: those that the figure shows; by default the paper's.
    """
    t, points = study.t, [row for row in sheet.of("point") if row["id"]]
    said = [f"Study {study.name}", *t.hardware(), study.data]
    hosts = t.get("count", name="hosts")
    if hosts and hosts.value:
        said.append(f"{hosts.value:.0f} host{'s' if hosts.value > 1 else ''}")
    if found := {row["n"] for row in points if row["spread"]}:
        numbers = " to ".join(dict.fromkeys(map(str, (min(found), max(found)))))
        said.append(f"{numbers} replicate{'s' if max(found) > 1 else ''}")
    spreads = {row["spread"] for row in points}
    meant = ["bars: lowest to highest machine"] if RANGE in spreads else []
    meant += ["bars of one host: 95 % interval"] if INTERVAL in spreads else []
    meant += ["hollow: one replicate"] if any(row["fill"] == "hollow" for row in points) else []
    signs = f" Signs: means; {'; '.join(meant)}." if meant else ""
    sheet.text("footer", f"{', '.join(filter(None, said))}.{signs}")
    if said := choose.caution(t):
        sheet.text("footer", said)
    drawn = [study.t[row["id"]] for row in sheet.rows if row["id"]]
    if choose.turned(drawn):
        said = "Some of these gains are of sets that took turns in one cell, others of a cell for "
        sheet.text("footer", f"{said}each set: `design` in estimates.csv.")
    sheet.text("footer", _not_measured(study, points, set(arms) or {study.arm}))
    return sheet


def _not_measured(study: Study, points: list[dict], arms: set[str]) -> str:
    """One sentence: methods that do not run here, and what else of the drawn jobs has no number."""
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    shown = {parse_scenario(study.t[row["id"]].scenario).family for row in points}
    for e in study.t.of("outcome"):
        scenario = parse_scenario(e.scenario)
        if e.status == "completed" or e.arm not in arms:
            continue
        if e.status == "unsupported":
            reason = e.note.split(";")[0] or "unsupported"
            groups[reason][labels.method(family_of(e.method))] = None
        elif not scenario.variant and scenario.family in shown:
            way = "" if e.arm == PAPER_ARM else f" as {labels.arm(e.arm)}"
            sets = labels.scenario(e.scenario, count=False)
            groups[labels.status(e.status)][f"sets of {sets}{way}"] = None
    parts = []
    for reason, sets in groups.items():
        names = list(sets)
        more = f" and {len(names) - 2} more" if len(names) > 3 else ""
        parts.append(f"{', '.join(names[: 2 if more else 3])}{more} ({reason})")
    return f"Not measured: {'; '.join(parts)}." if parts else ""
