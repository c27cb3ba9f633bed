"""MIG layouts: what is planned fits the card, and what does not fit is refused, on every table.

What fits is found here a second time, in another way: by trying all sets of places.
"""

import json
import re
from collections import Counter
from contextlib import ExitStack
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import machine
from tests.studio import REPOSITORY
from workflow.collocation import gpu
from workflow.collocation.plan import mig_plan
from workflow.collocation.sharing.evidence import Unsupported
from workflow.collocation.sharing.mig.layout import Card, Layout, plan
from workflow.collocation.spec.grid import expand
from workflow.collocation.spec.load import (
    check,
    load_study,
    load_workloads,
    read_yaml,
)
from workflow.collocation.spec.study import CONFIG


def load_card(path: Path) -> Card:
    return check(Card, read_yaml(path), str(path))


def replace(model, **changes):
    return type(model)(**(dict(model) | changes))


TABLES = sorted((REPOSITORY / "tests" / "cards").glob("*.json"))
CARDS = {path.stem: load_card(path) for path in TABLES}
A30, A100, H200 = (CARDS[name] for name in ("a30", "a100_40", "h200_141"))
FINER = replace(  # as a card would have it whose memory is counted in twice as many units
    H200,
    profiles=tuple(
        replace(p, placements=tuple((2 * start, 2 * size) for start, size in p.placements))
        for p in H200.profiles
    ),
)
WORKLOADS = load_workloads(CONFIG / "workloads.yaml")
PAPER = expand(load_study(CONFIG / "studies", "paper", WORKLOADS), WORKLOADS)
A, B = "resnet26_cifar10_b128", "resnet50_imagenet64_b128"
COMPUTE = {  # what mig-parted's known configurations of an A100 have
    "7g": {"1c": 7, "2c": 3, "3c": 2, "4c": 1, "7c": 1},
    "4g": {"1c": 4, "2c": 2, "4c": 1},
    "3g": {"1c": 3, "2c": 1, "3c": 1},
    "2g": {"1c": 2, "2c": 1},
    "1g": {"1c": 1},
}
PLAIN = ("7g.141gb", "4g.71gb", "3g.71gb", "2g.35gb", "1g.18gb")  # of an H200
PARTS = [f"{part}.{whole}" for whole in COMPUTE for part in COMPUTE[whole]]

cards = st.sampled_from(list(CARDS.values()))
instances = st.lists(st.sampled_from(["1g", "1g2x", "2g", "3g", "4g", "7g"]), min_size=1)
anything = st.lists(st.sampled_from(["1g", "1g2x", "2g", "3g", "4g", *PARTS]), min_size=1)
parts_of_a_kind = st.sampled_from(list(COMPUTE)).flatmap(
    lambda whole: st.lists(
        st.sampled_from(["1g", *(f"{part}.{whole}" for part in COMPUTE[whole])]),
        min_size=1,
        max_size=7,
    )
)


@st.composite
def odd_cards(draw) -> tuple[Card, list[str]]:
    """A card that allows fewer of a profile, and more places, than one that there is; wishes."""
    slices = {0: "1g", 1: "2g", 2: "3g", 3: "4g", 9: "1g2x"}
    taken = draw(st.lists(st.sampled_from(list(slices)), min_size=1, max_size=2, unique=True))
    odd = [
        replace(
            profile,
            most=draw(st.integers(1, 7)),
            placements=tuple((start, profile.size) for start in range(9 - profile.size)),
        )
        for profile in H200.profiles
        if profile.index in taken
    ]
    whole = next(profile for profile in H200.profiles if profile.slices == 7)
    wishes = st.lists(st.sampled_from([slices[index] for index in taken]), min_size=1, max_size=8)
    return replace(H200, profiles=(*odd, whole)), draw(wishes)


def alike(method: str, count: int) -> dict:
    return {"method": method, "members": [{"workload": "job"}] * count}


def mix(method: str, *slices: str) -> dict:
    members = [{"workload": f"job_{n}", "slice": text} for n, text in enumerate(slices)]
    return {"method": method, "members": members}


def planned(spec: dict, card: Card) -> Layout | None:
    """None where the planner refuses."""
    try:
        return plan(spec, card)
    except Unsupported:
        return None


def first(spec: dict, card: Card) -> str:
    return str(plan(spec, card))


def refusal(spec: dict, card: Card) -> str:
    with pytest.raises(Unsupported) as refused:
        plan(spec, card)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# -- what fits, found by brute force --------------------------------------------------------------


@cache
def everything(card: Card) -> set[frozenset]:
    """Every multiset of a card's plain profiles that can be there at once, as name-count pairs."""
    profiles = [p for p in card.profiles if "+" not in p.name and "-" not in p.name]
    width = card.slices
    pieces = [
        (p.name, p.slices, set(range(start, start + size)))
        for p in profiles
        for start, size in p.placements
    ]
    found = set()
    for number in range(1, width + 1):
        for chosen in combinations(pieces, number):
            covered = set().union(*(cells for _, _, cells in chosen))
            if len(covered) < sum(len(cells) for _, _, cells in chosen):
                continue
            names = Counter(name for name, _, _ in chosen)
            if sum(slices for _, slices, _ in chosen) > width:
                continue
            if all(names[p.name] <= p.most for p in profiles):
                found.add(frozenset(names.items()))
    return found


def named(text: str, card: Card) -> str | None:
    """The name of the profile that '2g' or '1g2x' stands for on a card."""
    double = text == "1g2x"
    found = [
        p.name
        for p in card.profiles
        if p.name.startswith(text[:2])
        and not p.name.endswith("+me")
        and (int(text[0]) == 1 and {size for _, size in p.placements} == {2}) == double
    ]
    return found[0] if found else None


def can_be(wanted: list[str], card: Card) -> bool:
    """Whether these GPU instances fit together."""
    names = Counter(named(text, card) for text in wanted)
    return None not in names and frozenset(names.items()) in everything(card)


def partitions(items: list) -> list[list[list]]:
    """All ways to put items into groups."""
    if not items:
        return [[]]
    rest, found = partitions(items[1:]), []
    for groups in rest:
        found.append([[items[0]], *groups])
        found += [
            [*groups[:n], [items[0], *groups[n]], *groups[n + 1 :]] for n in range(len(groups))
        ]
    return found


def is_one_instance(group: list[str]) -> str | None:
    """The GPU instance that these compute instances can make up ('2g' alone is one); or None."""
    whole = {text.rpartition(".")[2] for text in group}
    if len(group) == 1 and "." not in group[0]:
        return group[0]
    if len(whole) > 1 or any("." not in text for text in group):
        return None
    [whole] = whole
    parts = Counter(text.split(".")[0] for text in group)
    sizes = sum(int(part[0]) * count for part, count in parts.items())
    fits = all(count <= COMPUTE[whole].get(part, 0) for part, count in parts.items())
    return whole if fits and sizes <= int(whole[0]) else None


def can_be_divided(wanted: list[str], card: Card) -> bool:
    """Whether these instances fit, compute instances shared out over GPU instances somehow."""
    ways = ([is_one_instance(group) for group in groups] for groups in partitions(wanted))
    return any(None not in way and can_be(way, card) for way in ways)


# -- what is planned holds ------------------------------------------------------------------------


@settings(deadline=None)
@given(cards, anything | instances | parts_of_a_kind)
def test_a_plan_keeps_to_the_cards_rules_and_gives_each_member_its_seat(card, wanted):
    layout = planned(mix("mig", *wanted), card)
    if layout is None:
        return
    cells = [n for part in layout.parts for n in range(part.start, part.start + part.size)]
    assert len(cells) == len(set(cells))
    assert all((part.start, part.size) in part.profile.placements for part in layout.parts)
    assert sum(part.profile.slices for part in layout.parts) <= card.slices
    used = Counter(part.profile for part in layout.parts)
    assert all(count <= profile.most for profile, count in used.items())
    for part in layout.parts:
        offered = COMPUTE[f"{part.profile.slices}g"]
        assert sum(part.compute) <= part.profile.slices
        assert all(
            number <= offered[f"{slices}c"] for slices, number in Counter(part.compute).items()
        )
    seats = [(p, c) for p, part in enumerate(layout.parts) for c in range(len(part.compute))]
    assert sorted(layout.seats) == seats
    for text, (part, compute) in zip(wanted, layout.seats, strict=True):
        whole, slices = layout.parts[part], text.split("c.")[0]
        assert whole.profile.name == named(text.rpartition(".")[2], card)
        assert whole.compute[compute] == int(slices[0])


divided = parts_of_a_kind | st.lists(st.sampled_from(["2g", *PARTS]), min_size=1, max_size=7)


@settings(deadline=None, max_examples=180)
@given(st.tuples(cards, instances) | odd_cards() | st.tuples(cards, divided))
def test_the_planner_agrees_with_brute_force(drawn):
    """On GPU instances, also of cards that nobody has seen, and on compute instances."""
    card, wanted = drawn
    fits = can_be_divided if any("." in text for text in wanted) else can_be
    assert bool(planned(mix("mig", *wanted), card)) == fits(wanted, card)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_the_planner_agrees_with_brute_force_on_everything_that_fits(card):
    slices = {
        p.name: "1g2x" if (p.slices, p.size) == (1, 2) else f"{p.slices}g"
        for p in card.profiles
        if p.plain
    }
    for names in everything(card):
        wanted = list(chain.from_iterable([slices[name]] * count for name, count in names))
        assert planned(mix("mig", *wanted), card), names


# -- which is planned -----------------------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("count", range(1, 10))
def test_alike_members_take_the_most_sms_then_the_most_memory_of_which_so_many_fit(card, count):
    plain = [p for p in card.profiles if p.name.endswith("gb")]
    fit = [p for p in plain if frozenset({(p.name, count)}) in everything(card)]
    known = None not in {p.sm_count for p in plain}
    layout = planned(alike("mig", count), card)
    assert bool(layout) == bool(fit)
    if layout:
        [taken] = {part.profile for part in layout.parts}
        assert len(layout.parts) == count
        for other in fit:
            sms = (taken.sm_count, other.sm_count) if known else (taken.slices, other.slices)
            assert sms[0] > sms[1] or (sms[0] == sms[1] and taken.size >= other.size)


A30_OFFERS = (
    "NVIDIA A30 has no 7g; it has 4x 1g.6gb at {0,1,2,3}:1, 2x 2g.12gb at {0,2}:2, 1x 4g.24gb at "
    "{0}:4, of 4 SM slices in all"
)
UNFIT = "does not fit on NVIDIA H200, with 7x 1g.18gb at {0,1,2,3,4,5,6}:1, 4x 1g.35gb at "
PLANS = [  # method, how many alike or the slices of a mix, layout or how it is refused
    *((H200, f"mig_{name.partition('.')[0]}", 1, name) for name in PLAIN),
    (A30, "mig_7g", 1, f"mig_7g: {A30_OFFERS}"),
    (H200, "mig", ["1g2x", "1g", "2g"], "1g.35gb + 1g.18gb + 2g.35gb"),
    (H200, "mig", ["2g"] * 4, f"mig: 4x 2g {UNFIT}"),  # how often
    (H200, "mig", ["4g", "2g", "2g"], f"mig: 4g + 2x 2g {UNFIT}"),  # slices
    (H200, "mig", ["3g", "3g", "1g"], f"mig: 2x 3g + 1g {UNFIT}"),  # places
    (H200, "mig", ["5c.7g"], "mig: NVIDIA H200 has no 5c.7g; it has "),
    (H200, "mig", ["half"], "mig: a slice is written as 2g, 1g2x or 3c.7g, not 'half'"),
    (H200, "mig_1g2x", 4, "4x 1g.35gb"),
    (H200, "mig_1g2x", 5, f"mig_1g2x: 5x 1g2x {UNFIT}"),
    (CARDS["rtx_pro_6000"], "mig_1g2x", 1, "mig_1g2x: NVIDIA RTX PRO 6000 "),
    *((H200, "mig_shared", count, f"{count}x 1c in 7g.141gb") for count in (4, 7)),
    (H200, "mig_shared", 1, "7g.141gb"),
    (H200, "mig_shared", 2, "2x 3c in 7g.141gb"),
    (H200, "mig_shared", 3, "3x 2c in 7g.141gb"),
    (A30, "mig_shared", 2, "2x 2c in 4g.24gb"),
    (H200, "mig_shared", 8, "mig_shared: 8x 1c.7g do not fit in one GPU instance of NVIDIA H200"),
    (A100, "mig_shared", ["3c.7g", "3c.7g"], "2x 3c in 7g.40gb"),
    (A100, "mig_shared", ["2g", "2g"], "mig_shared: 2x 2g do not fit in one GPU instance"),
]


@pytest.mark.parametrize(("card", "method", "wished", "expected"), PLANS)
def test_what_is_planned(card, method, wished, expected):
    spec = alike(method, wished) if isinstance(wished, int) else mix(method, *wished)
    if layout := planned(spec, card):
        assert str(layout) == expected
    else:
        assert refusal(spec, card).startswith(expected)


def test_profiles_with_attributes_are_never_taken():
    special = ("+me", "+gfx", "-me", "+me.all")
    profile = H200.profiles[0]
    tempting = [replace(profile, name=f"1g.18gb{s}", sm_count=500, most=7) for s in special]
    card = replace(H200, profiles=(*tempting, *H200.profiles))
    assert first(alike("mig", 7), card) == "7x 1g.18gb"
    assert first(mix("mig", "1g", "2g"), card) == "1g.18gb + 2g.35gb"


def test_in_how_many_units_a_card_counts_its_memory_changes_no_plan():
    for wanted in (["1g"], ["1g2x"] * 4, ["1g2x", "1g", "2g"], ["1g"] * 7, ["1g2x"] * 5):
        spec = mix("mig", *wanted)
        layouts = [planned(spec, card) for card in (H200, FINER)]
        assert len({str(layout) for layout in layouts}) == 1
    assert refusal(spec, FINER).startswith("mig: 5x 1g2x does not fit on ")


SEATS = [  # profile's slices and start of each part, its compute instances; the members' seats
    (
        mix("mig", "1g", "2g", "3g", "1g"),
        [(3, 4, (3,)), (2, 0, (2,)), (1, 2, (1,)), (1, 3, (1,))],
        ((2, 0), (1, 0), (0, 0), (3, 0)),
    ),
    (mix("mig", "1g", "1g2x"), [(1, 0, (1,)), (1, 2, (1,))], ((1, 0), (0, 0))),  # by memory
    (mix("mig_shared", "2c.7g", "4c.7g", "1c.7g"), [(7, 0, (4, 2, 1))], ((0, 1), (0, 0), (0, 2))),
]


@pytest.mark.parametrize(("spec", "parts", "seats"), SEATS)
def test_the_largest_lies_first_and_each_member_has_its_seat(spec, parts, seats):
    layout = plan(spec, A100)
    assert [(part.profile.slices, part.start, part.compute) for part in layout.parts] == parts
    assert layout.seats == seats


# -- the tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_says_where_each_row_comes_from(path):
    card = load_card(path)
    assert card.source and all(profile.source for profile in card.profiles)
    assert card.recorded == (path.stem == "h200_141")
    assert [p.index for p in card.profiles] == sorted({p.index for p in card.profiles})
    assert len({p.id for p in card.profiles}) == len(card.profiles)


def test_a_mistake_in_a_table_names_file_and_key(tmp_path, capsys):
    table = json.loads((REPOSITORY / "tests/cards/h200_141.json").read_text())
    table["profiles"][1].update(placements=[[0]])
    path = tmp_path / "card.json"
    path.write_text(json.dumps(table))
    assert mig_plan.main(["--card", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"{path}: profiles.1.placements.0.1: is missing")


# -- the paper's study, and make plan CARD=… ------------------------------------------------------


def paper_cells() -> dict[tuple[str, str], dict]:
    return {(c.scenario, c.method): c.spec.to_json() for c in PAPER if c.method.startswith("mig")}


@pytest.mark.parametrize("name", [name for name in CARDS if CARDS[name].slices == 7])
def test_every_layout_of_the_paper_fits_on_cards_with_seven_slices(name):
    cells = paper_cells()
    assert len(cells) > 30
    found = {key: first(spec, CARDS[name]) for key, spec in cells.items()}
    one, two, three, seven = (p.name for p in CARDS[name].profiles[:3] + CARDS[name].profiles[4:5])
    assert found["1x_resnet152_imagenet_b32", "mig_7g"] == seven
    assert found["2x_resnet26_cifar10_b32", "mig"] == f"2x {three}"
    assert found["3x_cait_xxs24_imagenet_b128", "mig"] == f"3x {two}"
    assert found["7x_efficientnetv2_s_imagenet64_b128", "mig"] == f"7x {one}"
    assert found["1x_dlrm_criteo_b2048+1x_resnet152_imagenet_b32", "mig_shared"] == (
        f"2x 3c in {seven}"
    )
    assert found[f"3x_{B}+1x_{A}", "mig"] == f"3x {two} + {one}"
    assert found[f"2x_{B}+2x_{A}", "mig"] == f"2x {two} + 2x {one}"


def printed(capsys, *arguments: str) -> str:
    assert mig_plan.main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["a30", "h200_141"])
def test_mig_plan_shows_every_cell_once_in_a_hundred_columns(name, capsys):
    page = printed(capsys, "--config", "study=paper", "--card", f"tests/cards/{name}.json")
    lines = page.splitlines()
    assert all(len(line) <= 100 for line in lines)
    cells = paper_cells()
    assert all(lines.count(scenario) == 1 for scenario, _ in cells)
    assert all(f"  {method}" in page for _, method in cells)
    assert "MIG mode: not known" in page
    mig = [cell for cell in PAPER if cell.method.startswith("mig")]
    none = [c.method for c in mig if planned(cells[c.scenario, c.method], CARDS[name]) is None]
    told = " ".join(page.split()).partition("'unsupported', for reasons below: ")[2]
    assert all(f"{count} {method}" in told for method, count in Counter(none).items())
    assert bool(none) == bool(told) == (name == "a30")


def test_a_plan_for_a_card_tells_minutes_and_what_will_not_fit_by_what_was_measured(capsys):
    pages = {}
    for name in ("a100_40", "h200_141"):
        page = printed(capsys, "--config", "study=paper", "--card", f"tests/cards/{name}.json")
        told = pages[name] = " ".join(page.split("MIG layouts")[0].split())
        assert re.match(rf"study 'paper' on {CARDS[name].name}: \d+ cells, about [\d.]+ h", told)
        assert "how much memory is not known of: " in told
        assert re.search(r" \d+\.\d +\d+ C3a", told), "what a verdict costs"
    small, large = pages.values()
    # The peaks are the shipped study's: 10.8 GiB for ResNet152, and half a GiB for its context.
    set_of = "3x_resnet152_imagenet_b32/paper_step"
    assert f"{set_of}: a job takes 11.3 GiB, 2g.10gb has 9.6 (mig)" in small
    set_of = "7x_resnet152_imagenet_b32/paper_step"
    assert f"{set_of}: 7 jobs take 78.9 GiB, the card has 39.2 (" in small
    assert "resnet152_imagenet_b32/" not in large and "1g.18gb has 16" in large
    methods = Counter(cell.method for cell in PAPER)
    assert all(f" {count} {method}" in small for method, count in methods.items())


def test_mig_plan_of_a_study_without_mig_cells(tmp_path, capsys):
    job = "workloads: [resnet26_cifar10_b32], counts: {1: [naive]}"
    (tmp_path / "plain.yaml").write_text(f"description: d\nladders: [{{{job}}}]\n")
    settings = ["study=plain", f"studies={tmp_path}"]
    page = printed(capsys, "--config", *settings, "--card", str(TABLES[0]))
    assert "has no MIG cells" in page


@pytest.fixture
def on_card(tmp_path):
    """A function that makes this process see a card, and gives its folder."""
    with ExitStack() as stack:

        def see(name: str = "h200_141", **settings) -> Path:
            machine.create(tmp_path / "machine", name, **settings)
            stack.enter_context(machine.installed(tmp_path / "machine"))
            return tmp_path / "machine"

        yield see


@pytest.mark.parametrize(
    ("name", "mig", "said"),
    [
        ("h200_141", True, "  MIG mode: on\n"),
        ("a100_40", False, "mig_mode=switch does not, for that may reset such a card\n"),
    ],
)
def test_the_plan_reads_this_card_and_its_mode(name, mig, said, on_card, capsys):
    on_card(name, mig=mig)
    page = printed(capsys, "--config", "study=kick")
    assert f"on {CARDS[name].name}\n  profile table: read from the card GPU-" in page
    assert said in page.replace("\n    ", " ")
    assert "  MIG is experimental: it has divided a simulated card only\n\n" in page


@pytest.mark.parametrize(
    ("card", "said"),
    [
        (None, "there is no NVIDIA GPU to read"),
        ("h200", "h200: no such file; "),
        ({"name": "none"}, "NVIDIA X has no MIG; "),
        ({"permission": False}, "MIG: no permission on NVIDIA H200 for reading its profiles; "),
        ({"secret": True}, "which profiles NVIDIA H200 offers is not known until MIG mode is on; "),
    ],
)
def test_mig_plan_without_profiles_names_the_tables(on_card, monkeypatch, capsys, card, said):
    file = ["--card", card] if card == "h200" else []
    if card is None:
        monkeypatch.setattr(gpu, "find", lambda wanted: [])
    elif not file:
        on_card(**card)
    assert mig_plan.main(file) == 2
    told = capsys.readouterr()
    assert said in told.err and told.err.count("\n") == 1 and not told.out
    assert "--card (CARD=FILE in make): tests/cards/" in told.err
