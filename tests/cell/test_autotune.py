"""Members autotune, each in its turn, or all at once."""

import pytest

from tests.cell.test_run import run_of
from tests.studio import PLAIN, study
from workflow.collocation.run.progress import Display
from workflow.collocation.study.definition import Study
from workflow.collocation.study.grid import expand
from workflow.collocation.study.workloads import VisionWorkload

# Members of torchfree that autotune, and write down beside how many; the greedy one then fails.
TUNER = """
import time
from pathlib import Path
from types import SimpleNamespace
from tests import torchfree
from tests.torchfree import preload

FOLDER = Path(__file__).parent

def main(spec, channel):
    def emit(event, **fields):
        channel.emit(event, **fields | ({"commands": ["autotune"]} if event == "built" else {}))
        if event == "built":
            autotune()

    def autotune():
        assert channel.wait() == "autotune"
        mine, until, beside = FOLDER / f"{spec.index}.tunes", time.monotonic() + WAIT_S, 0
        mine.touch()
        while beside < 2 and time.monotonic() < until:
            beside = max(beside, len(list(FOLDER.glob("*.tunes"))) - 1)
        with (FOLDER / "beside").open("a") as file:
            file.write(f"{beside}")
        if not beside:
            mine.unlink()
        if spec.workload == "greedy":
            raise torchfree.OutOfMemory("warm")
        channel.emit("autotuned", seconds=0.25)
        assert channel.wait() == "warm" and len((FOLDER / "beside").read_text()) == 3

    kept = {name: getattr(channel, name) for name in ("wait", "poll", "_events")}
    return torchfree.main(spec, SimpleNamespace(emit=emit, **kept))
"""


@pytest.mark.parametrize(
    ("autotune", "beside", "wait"), [("sequential", "000", 0.2), ("concurrent", "222", 60)]
)
def test_members_tune_in_turn_and_warm_up_together(tmp_path, monkeypatch, autotune, beside, wait):
    mix = {
        "members": {"it": 2, "greedy": 1},
        "methods": ["naive"],
        "measure": {"autotune": autotune},
    }
    workloads = dict.fromkeys(("it", "greedy"), VisionWorkload(**PLAIN))
    planned = {it.id: it for it in expand(Study.model_validate(study(mixes=[mix])), workloads)}
    shown = []
    monkeypatch.setattr(Display, "show", lambda _, what: shown.append(what()))
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "the_trainer.py").write_text(TUNER.replace("WAIT_S", str(wait)))
    run = run_of(tmp_path, planned["2x_it+1x_greedy/paper_step/naive/r1"], trainer="the_trainer")
    record = run.record().model_dump(mode="json")
    assert (tmp_path / "beside").read_text() == beside
    greedy, *others = sorted(record["members"], key=lambda member: member["workload"])
    assert (record["status"], greedy["phase"]) == ("out_of_memory", "warm")
    assert [(m["status"], m["build_s"]["autotune"]) for m in others] == [("completed", 0.25)] * 2
    assert any(line.startswith("tuning ") for line in shown)
    assert record["spec"]["measure"]["autotune"] == autotune and record["timing"]["autotune_s"] > 0
