"""The contract of a method: one that is defined here alone is planned, refused, entered, proven."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.card import FakeCard
from tests.studio import study, workload
from workflow.collocation import gpu
from workflow.collocation import sharing as methods
from workflow.collocation.run import waiting
from workflow.collocation.sharing.base import Method
from workflow.collocation.sharing.evidence import Report
from workflow.collocation.sharing.mps import Mps
from workflow.collocation.sharing.mps_daemon import Daemon
from workflow.collocation.sharing.naive import Naive
from workflow.collocation.sharing.streams import Streams
from workflow.collocation.study import methods as planned_methods
from workflow.collocation.study.definition import Study
from workflow.collocation.study.grid import Cell, expand
from workflow.collocation.study.workloads import VisionWorkload

WORKLOADS = {"plain": VisionWorkload(**workload())}


class InTurn(Method):
    """Members that are told whose turn it is."""

    family = "in_turn"

    def environment(self, member):
        return {"CUDA_VISIBLE_DEVICES": "", "TURN": f"{member} of {len(self.spec.members)}"}

    def evidence(self, reports):
        return {"verified": True, "turns": {member: r.pid for member, r in reports.items()}}


def planned(count: int, method: str = "in_turn", **extra) -> Cell:
    ladders = [{"workloads": ["plain"], "counts": {count: [method]}}]
    checked = Study.model_validate(study(ladders=ladders, **extra))
    [cell] = [cell for cell in expand(checked, WORKLOADS) if cell.method == method]
    return cell


def test_a_method_of_ones_own_is_planned_within_its_bounds_and_entered(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'in_turn' is not allowed"):
        planned(2)
    monkeypatch.setitem(methods.METHODS, "in_turn", InTurn)
    bounds = planned_methods.MethodBounds(min_members=2, max_members=3)
    monkeypatch.setitem(planned_methods.METHOD_BOUNDS, "in_turn", bounds)
    cell = planned(2)
    assert methods.refusal(cell.spec, None) is None
    for count in (1, 4):
        with pytest.raises(ValueError, match=f"'in_turn' takes 2 to 3 members, not {count}"):
            planned(count)
    with methods.enter(cell.spec, None, tmp_path) as sharing:
        assert sharing.environment(1)["TURN"] == "1 of 2"
        assert sharing.evidence({1: Report(7, None, None, None)})["turns"] == {1: 7}
        # A method need not override these: nothing to drop, no servers, no instances.
        assert sharing.release(1) is None
        assert (sharing.nvml_pids(), sharing.instances()) == (set(), {})
        assert sharing.entity_of(0) == "gpu"


def test_every_method_that_a_study_may_name_has_a_class():
    for name in planned_methods.METHOD_BOUNDS:
        assert name.startswith(methods.method_class(name).family)


class NamedCard(FakeCard):
    """A card that CUDA_VISIBLE_DEVICES names by its index where that is not None."""

    def cuda_name(self):
        return self.uuid if self.index is None else str(self.index)


@pytest.mark.parametrize(
    ("index", "plain", "client"),
    [(0, "0", "0"), (1, "1", "GPU-0"), (None, "GPU-0", "GPU-0")],
)
def test_the_name_under_which_members_get_their_card(index, plain, client):
    """Clients of MPS count the cards that their daemon shows, so only 0 means the same to all."""
    spec, card = planned(1, "naive").spec, NamedCard(index=index)
    mps = Mps(spec, card)
    mps.daemon = Daemon(card.uuid, Path("logs"), Path("pipe"))
    for method, name in ((Naive(spec, card), plain), (Streams(spec, card), plain), (mps, client)):
        environment = method.environment(0)
        assert environment["CUDA_VISIBLE_DEVICES"] == name
        assert name == card.uuid or environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert mps.daemon.environment["CUDA_VISIBLE_DEVICES"] == card.uuid


# -- what an implementation asks for
# --------------------------------------------------------------------------

CARD = gpu.Device("GPU-0", "Card 0", 0, 80 * 2**30, "580.1", (9, 0), None, 132)
THERE = {"find_spec": lambda name: name, "which": lambda name: name, "Python.h": lambda path: True}


@pytest.mark.parametrize(
    ("implementation", "device", "lacks", "reason"),
    [
        ("bf16", None, (), None),
        ("graph", None, (), "a CUDA graph needs an NVIDIA GPU, and there is none on this machine"),
        ("graph", CARD, THERE, None),
        ("compile", CARD, ["find_spec"], "torch.compile needs the Python package triton, which"),
        ("compile", CARD, ["which", "Python.h"], "torch.compile needs a C compiler (gcc or clang)"),
        ("compile", replace(CARD, capability=(6, 1)), (), "torch.compile needs a GPU of compute"),
    ],
)
def test_what_an_implementation_asks_of_a_machine(
    monkeypatch, implementation, device, lacks, reason
):
    there = THERE | dict.fromkeys(lacks, lambda _: None)
    monkeypatch.setattr(waiting, "find_spec", there["find_spec"])
    monkeypatch.setattr(waiting.shutil, "which", there["which"])
    monkeypatch.setattr(waiting.Path, "exists", there["Python.h"])
    monkeypatch.setattr(waiting.methods, "refusal", lambda *_: None)
    said = waiting.refusal(planned(1, "naive", implementations=[implementation]).spec, device)
    assert (said or "").startswith(reason or "") and bool(said) == bool(reason)
