"""What figures choose from estimates: sets of jobs alike, their looks, the sentences below."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis import labels
from analysis.estimates.schema import INTERVAL, RANGE, Estimate
from analysis.estimates.table import Estimates
from analysis.figures.sheet import Sheet
from analysis.names import PAPER_ARM, family_of, parse_scenario, scenario_id

# Methods that are drawn, and how their lines look. Shares of SMs under MPS are in tables.
WAYS = ("naive", "mps", "mig")
DASHES = {"naive": "--", "mps": "-", "mig": "-."}
# Workloads, in the order in which they come: hue, lightness and sign differ.
HUES = ("#0B5394", "#5C9BD5", "#2A9D8F", "#E0A224", "#A1372D", "#555555")
SIGNS = ("o", "s", "^", "D", "v", "P")
MOST = 6  # panels of a figure, or lines of a panel
NO_GPU = "this study has no readings of a GPU"


@dataclass(frozen=True)
class Study:
    """A study's estimates, its name, and whether its data are real."""

    t: Estimates
    name: str
    data: str = ""
    folder: Path | None = None

    @classmethod
    def read(cls, folder: Path) -> Study:
        """Raises OSError or ValueError where there are no estimates."""
        found = {
            json.loads(path.read_text(encoding="utf-8")).get("source")
            for path in sorted((folder / "datasets").glob("*.json"))
        }
        said = {frozenset({"synthetic"}): "generated data", frozenset({"real"}): "real data"}
        data = said.get(frozenset(found), "partly generated data") if found else ""
        t = Estimates.read(folder / "estimates.parquet")
        return cls(t, folder.resolve().name, data, folder)

    @property
    def arm(self) -> str:
        """The paper's arm, or the study's first."""
        arms = self.t.arms()
        return PAPER_ARM if PAPER_ARM in arms or not arms else arms[0]

    def alike(self, quantity: str, **where: str) -> dict[str, list[Estimate]]:
        """Of sets of one workload without variants, in plain windows: workload → its numbers."""
        found: dict[str, list[Estimate]] = defaultdict(list)
        for e in self.t.of(quantity, **{"window": "", "job": "", "name": ""} | where):
            scenario = parse_scenario(e.scenario)
            if not scenario.mixed and not scenario.variant and e.value is not None:
                found[scenario.parts[0][0]].append(e)
        return found

    def fullest(self, quantity: str, arm: str, most: int = MOST) -> dict[str, list[Estimate]]:
        """The workloads with the most sets of two jobs or more, at most so many, in their order.

        A workload with a third of the sets of another, or fewer, is left out.
        """
        found = {
            workload: [e for e in numbers if e.method in WAYS]
            for workload, numbers in self.alike(quantity, arm=arm).items()
        }
        sets = {w: sum(e.jobs > 1 for e in numbers) for w, numbers in found.items()}
        least = max(sets.values(), default=0) / 3
        ranked = sorted((w for w in found if sets[w] > least), key=lambda w: -sets[w])
        return {w: found[w] for w in found if w in ranked[:most]}

    def alone(self, quantity: str, workload: str, arm: str) -> Estimate | None:
        """Of one such job as a plain process."""
        return self.t.get(quantity, scenario=scenario_id({workload: 1}), arm=arm, method="naive")


def by_method(numbers: list[Estimate]) -> dict[str, list[Estimate]]:
    """Of WAYS, by number of jobs."""
    found = {way: [e for e in numbers if e.method == way] for way in WAYS}
    return {way: sorted(each, key=lambda e: e.jobs) for way, each in found.items() if each}


def look(e: Estimate, method: str = "") -> dict[str, str]:
    """Colour, sign and line of a method; hollow where there is one replicate."""
    method = method or e.method
    return {
        "colour": labels.colour(method),
        "marker": labels.marker(method),
        "line": DASHES.get(family_of(method), ":"),
        "fill": hollow(e),
    }


def hollow(e: Estimate) -> str:
    return "hollow" if e.n == 1 else ""


def under(e: Estimate) -> str:
    """`7 × ResNet26 b32 under MPS`, `7 × ResNet26 b32 as plain processes`."""
    way = "as plain processes" if e.method == "naive" else f"under {labels.method(e.method)}"
    return f"{labels.scenario(e.scenario)} {way}"


def written(job: str, arm: str) -> str:
    """A job, and how it is written where that is not the paper's way."""
    return labels.job(job) + ("" if arm == PAPER_ARM else f" as {labels.arm(arm)}")


def strokes(methods: Iterable[str]) -> str:
    """What the lines' strokes stand for: `Solid: MPS; dashed: plain processes`."""
    names = {"mps": "solid: MPS", "naive": "dashed: plain processes", "mig": "dash-dotted: MIG"}
    drawn = set(methods)
    text = "; ".join(name for way, name in names.items() if way in drawn)
    return text[:1].upper() + text[1:]


def times(low: Estimate, high: Estimate) -> str:
    """`1.90 to 3.37 times`, or one number where both read alike."""
    ends = dict.fromkeys(labels.number(e.value) for e in (low, high))
    return f"{' to '.join(ends)} times"


def nothing(sheet: Sheet, title: str, why: str) -> Sheet:
    """A drawing of one sentence."""
    sheet.text("title", title)
    sheet.text("subtitle", f"Nothing to draw: {why}.")
    return sheet


def footers(study: Study, sheet: Sheet, mixed: bool = False, arms: set[str] | None = None) -> Sheet:
    """Add what the numbers come from, what bars and signs mean, and what was not measured.

    mixed: the figure is of mixes. arms: those it shows; None for all.
    """
    t, points = study.t, [row for row in sheet.of("point") if row["id"]]
    hardware = (e.note.split(": ")[-1].split(";")[0] for e in t.of("count", host="*"))
    said = [f"Study {study.name}", *dict.fromkeys(hardware), study.data]
    hosts = t.get("count", name="hosts")
    if hosts and hosts.value:
        said.append(_number(int(hosts.value), "host"))
    if found := [row["n"] for row in points if row["spread"] and row["n"]]:
        least, most = min(found), max(found)
        said.append(
            _number(most, "replicate") if least == most else f"{least} to {most} replicates"
        )
    spreads = {row["spread"] for row in points}
    if RANGE in spreads:
        said.append("signs: middle over hosts, bars: least to most")
    if INTERVAL in spreads:
        also = " (of one host: its 95 % interval)" if RANGE in spreads else ""
        said += [] if also else ["bars: 95 % interval of one host"]
        said[-1] += also
    if any(row["fill"] == "hollow" for row in points):
        said.append("hollow: one replicate")
    sheet.text("footer", " · ".join(part for part in said if part))
    sheet.text("footer", _not_measured(study, points, mixed, arms))
    return sheet


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _not_measured(study: Study, points: list[dict], mixed: bool, arms: set[str] | None) -> str:
    """One sentence, or nothing."""
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    of_kind = [e for e in study.t.of("outcome") if parse_scenario(e.scenario).mixed == mixed]
    shown = {parse_scenario(study.t[row["id"]].scenario).family for row in points}
    done = {(parse_scenario(e.scenario).family, e.arm) for e in of_kind if e.status == "completed"}
    for e in of_kind:
        scenario = parse_scenario(e.scenario)
        if e.status == "completed" or (arms and e.arm not in arms):
            continue
        if e.status == "unsupported":
            reason = e.note.split(";")[0] or "unsupported"
            groups[reason][labels.method(family_of(e.method))] = None
        elif not scenario.variant and scenario.family in shown:
            some = "some sets of " if (scenario.family, e.arm) in done else ""
            name = " + ".join(written(job, e.arm) for job, _ in scenario.parts)
            groups[labels.status(e.status)][some + name] = None
    parts = []
    for reason, sets in groups.items():
        names = list(sets)
        more = f" and {len(names) - 2} more" if len(names) > 3 else ""
        parts.append(f"{', '.join(names[: 2 if more else 3])}{more} ({reason})")
    return f"Not measured: {'; '.join(parts)}." if parts else ""
