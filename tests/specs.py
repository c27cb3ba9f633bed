"""Specs of cells for tests of methods, with nothing in them that no method looks at."""

import json
from pathlib import Path

from tests.studio import workload
from workflow.collocation.sharing.mig_layout import MigCard, Profile
from workflow.collocation.study.cell import CellSpec, ImplementationSpec, MeasureSpec, MemberSpec
from workflow.collocation.study.workloads import VisionWorkload

CARDS = Path(__file__).parent / "cards"
JOB = VisionWorkload(**workload())
IMPLEMENTATION = ImplementationSpec(
    precision="bf16", channels_last=True, sync=False, cuda_graph=False
)


def member(workload: str = "a", **its) -> MemberSpec:
    return MemberSpec(workload=workload, job=JOB, cores_of=1, **its)


def cell(method: str, *members: MemberSpec, count: int = 0) -> CellSpec:
    """A cell of these members, or of so many copies of one."""
    its = {
        "members": members or (member(),) * count,
        "implementation": IMPLEMENTATION,
        "measure": MeasureSpec(),
    }
    return CellSpec(**its, method=method, seed=0, datasets={})


def alike(method: str, count: int) -> CellSpec:
    return cell(method, count=count)


def mix(*slices: str, method: str = "mig") -> CellSpec:
    """A cell whose members name their slices of the card."""
    return cell(method, *(member(f"w{n}", slice=text) for n, text in enumerate(slices)))


def card_table(name: str) -> MigCard:
    """A card's MIG profiles, from tests/cards."""
    table = json.loads((CARDS / f"{name}.json").read_text(encoding="utf-8"))
    keys = ("id", "name", "slices", "sm_count")
    places = [tuple(map(tuple, p["placements"])) for p in table["profiles"]]
    its = [{key: p[key] for key in keys} | {"max_count": p["most"]} for p in table["profiles"]]
    profiles = (Profile(**each, placements=at) for each, at in zip(its, places, strict=True))
    return MigCard(table["name"], tuple(profiles))


TABLES = {path.stem: card_table(path.stem) for path in sorted(CARDS.glob("*.json"))}
