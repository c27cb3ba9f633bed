"""MIG layouts: what is planned fits the card, and what does not fit is refused, on every table.

What fits is found here a second time, in another way: by trying all sets of places.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.specs import TABLES, alike, mix
from workflow.collocation.sharing.evidence import Unsupported
from workflow.collocation.sharing.mig_layout import Layout, MigCard, plan_layout
from workflow.collocation.study.cell import CellSpec

A30, A100, H200 = (TABLES[name] for name in ("a30", "a100_40", "h200_141"))
COMPUTE = {  # what mig-parted's known configurations of an A100 have
    "7g": {"1c": 7, "2c": 3, "3c": 2, "4c": 1, "7c": 1},
    "4g": {"1c": 4, "2c": 2, "4c": 1},
    "3g": {"1c": 3, "2c": 1, "3c": 1},
    "2g": {"1c": 2, "2c": 1},
    "1g": {"1c": 1},
}
PARTS = [f"{part}.{whole}" for whole in COMPUTE for part in COMPUTE[whole]]

cards = st.sampled_from(list(TABLES.values()))
whole = st.sampled_from(["1g", "1g2x", "2g", "3g", "4g", "7g"])
parts_of_a_kind = st.sampled_from(list(COMPUTE)).flatmap(
    lambda of: st.lists(
        st.sampled_from(["1g", *(f"{part}.{of}" for part in COMPUTE[of])]), min_size=1, max_size=7
    )
)


def planned(spec: CellSpec, card: MigCard) -> Layout | None:
    """None where the planner refuses, in a line."""
    try:
        return plan_layout(spec, card)
    except Unsupported as reason:
        assert "\n" not in str(reason)
        return None


# -- what fits, found by brute force --------------------------------------------------------------


@cache
def everything(card: MigCard) -> set[frozenset]:
    """Every multiset of a card's plain profiles that can be there at once, as name-count pairs."""
    profiles = [p for p in card.profiles if "+" not in p.name and "-" not in p.name]
    pieces = [
        (p.name, p.slices, set(range(start, start + size)))
        for p in profiles
        for start, size in p.placements
    ]
    found = set()
    for number in range(1, card.slices + 1):
        for chosen in combinations(pieces, number):
            covered = set().union(*(cells for _, _, cells in chosen))
            if len(covered) < sum(len(cells) for _, _, cells in chosen):
                continue
            names = Counter(name for name, _, _ in chosen)
            fits = sum(slices for _, slices, _ in chosen) <= card.slices
            if fits and all(names[p.name] <= p.max_count for p in profiles):
                found.add(frozenset(names.items()))
    return found


def named(text: str, card: MigCard) -> str | None:
    """The name of the profile that '2g' or '1g2x' stands for on a card."""
    for p in card.profiles:
        double = text[0] == "1" and {size for _, size in p.placements} == {2}
        plain = p.name.startswith(text[:2]) and not p.name.endswith("+me")
        if plain and double == (text == "1g2x"):
            return p.name
    return None


@settings(max_examples=180)
@given(cards, st.lists(whole, min_size=1), st.integers(1, 7))
def test_the_planner_agrees_with_brute_force(card, wanted, most):
    if most < 4:  # a card that allows fewer of each than one that there is
        fewer = (replace(p, max_count=min(most, p.max_count)) for p in card.profiles)
        card = replace(card, profiles=tuple(fewer))
    names = Counter(named(text, card) for text in wanted)
    fits = None not in names and frozenset(names.items()) in everything(card)
    assert bool(planned(mix(*wanted), card)) == fits


@given(cards, st.lists(whole | st.sampled_from(PARTS), min_size=1) | parts_of_a_kind)
def test_a_plan_keeps_to_the_cards_rules_and_gives_each_member_its_seat(card, wanted):
    layout = planned(mix(*wanted), card)
    if layout is None:
        return
    cells = [n for part in layout.partitions for n in range(part.start, part.start + part.size)]
    assert len(cells) == len(set(cells))
    assert all((part.start, part.size) in part.profile.placements for part in layout.partitions)
    assert sum(part.profile.slices for part in layout.partitions) <= card.slices
    used = Counter(part.profile for part in layout.partitions)
    assert all(count <= profile.max_count for profile, count in used.items())
    for part in layout.partitions:
        offered = COMPUTE[f"{part.profile.slices}g"]
        assert sum(part.compute) <= part.profile.slices
        assert all(n <= offered[f"{slices}c"] for slices, n in Counter(part.compute).items())
    seats = [(p, c) for p, part in enumerate(layout.partitions) for c in range(len(part.compute))]
    assert sorted(layout.seats) == seats
    for text, (part, compute) in zip(wanted, layout.seats, strict=True):
        its, slices = layout.partitions[part], text.split("c.")[0]
        assert its.profile.name == named(text.rpartition(".")[2], card)
        assert its.compute[compute] == int(slices[0])


# -- which is planned -----------------------------------------------------------------------------


@pytest.mark.parametrize("card", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("count", range(1, 10))
def test_alike_members_take_the_most_sms_then_the_most_memory_of_which_so_many_fit(card, count):
    plain = [p for p in card.profiles if p.name.endswith("gb")]
    fit = [p for p in plain if frozenset({(p.name, count)}) in everything(card)]
    layout = planned(alike("mig", count), card)
    assert bool(layout) == bool(fit)
    if layout:
        [taken] = {part.profile for part in layout.partitions}
        assert len(layout.partitions) == count
        assert all((taken.slices, taken.size) >= (p.slices, p.size) for p in fit)


UNFIT = "does not fit on NVIDIA H200, with 7x 1g.18gb, 4x 1g.35gb, 3x 2g.35gb, 2x 3g.71gb, "
PLANS = [  # method, how many alike or the slices of a mix, layout or how it is refused
    *((H200, f"mig_{name[:2]}", 1, name) for name in ("7g.141gb", "3g.71gb", "1g.18gb")),
    (A30, "mig_7g", 1, "mig_7g: NVIDIA A30 has no 7g; it has 4x 1g.6gb, 2x 2g.12gb, 1x 4g.24gb, "),
    (H200, "mig", ["1g2x", "1g", "2g"], "1g.35gb + 1g.18gb + 2g.35gb"),
    (H200, "mig", ["2g"] * 4, f"mig: 4x 2g {UNFIT}"),  # how often
    (H200, "mig", ["4g", "2g", "2g"], f"mig: 4g + 2x 2g {UNFIT}"),  # slices
    (H200, "mig", ["3g", "3g", "1g"], f"mig: 2x 3g + 1g {UNFIT}"),  # places
    (H200, "mig", ["5c.7g"], "mig: NVIDIA H200 has no 5c.7g; it has "),
    (H200, "mig_1g2x", 4, "4x 1g.35gb"),
    (H200, "mig_1g2x", 5, f"mig_1g2x: 5x 1g2x {UNFIT}"),
    (TABLES["rtx_pro_6000"], "mig_1g2x", 1, "mig_1g2x: NVIDIA RTX PRO 6000 "),
    (H200, "mig_shared", 1, "7g.141gb"),
    (H200, "mig_shared", 2, "2x 3c in 7g.141gb"),
    (H200, "mig_shared", 3, "3x 2c in 7g.141gb"),
    *((H200, "mig_shared", count, f"{count}x 1c in 7g.141gb") for count in (4, 7)),
    (A30, "mig_shared", 2, "2x 2c in 4g.24gb"),
    (H200, "mig_shared", 8, "mig_shared: 8x 1c.7g does not fit in one GPU instance of NVIDIA H200"),
    (A100, "mig_shared", ["3c.7g", "3c.7g"], "2x 3c in 7g.40gb"),
    (A100, "mig_shared", ["2g", "2g"], "mig_shared: 2x 2g does not fit in one GPU instance"),
]


@pytest.mark.parametrize(("card", "method", "wished", "expected"), PLANS)
def test_what_is_planned(card, method, wished, expected):
    spec = alike(method, wished) if isinstance(wished, int) else mix(*wished, method=method)
    try:
        assert str(plan_layout(spec, card)) == expected
    except Unsupported as reason:
        assert str(reason).startswith(expected)


def test_profiles_with_attributes_are_never_taken():
    tempting = [replace(H200.profiles[0], name=f"1g.18gb{s}", sm_count=500) for s in ("+me", "-me")]
    card = replace(H200, profiles=(*tempting, *H200.profiles))
    assert str(plan_layout(mix("1g", "2g"), card)) == "1g.18gb + 2g.35gb"
