"""Members that lie about themselves and cells that go wrong, on a GPU, through the real commands.

One table of scenarios, two machines: a fake H200 (tests/fakes; its members train nothing) and,
where there is one, a real NVIDIA GPU, which trains ResNet26. After each: the true status and
reason in run.json, the neighbour's fate, no process left, the card as it was, the next cell fine.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest
import yaml

from tests.fakes import driver, machine
from tests.lies import LATER_STEPS, lies
from tests.studio import REPOSITORY, SHORT, Running, Studio, flags_of, study, until, workload
from workflow.collocation import gpu
from workflow.collocation.gpu import nvidia
from workflow.collocation.study.definition import CONFIG

VARIANTS = {"mps_small": {"pinned_memory_mb": 4000}, "mps_tiny": {"pinned_memory_mb": 700}}
VARIANTS |= {"mps_60": {"sm_percent": 60}}
MEMBER_MB = 1000  # of device memory that a torch-free member wants: mps_tiny has less
LONG = 900.0  # seconds, for a real GPU's cells, one after the other


@dataclass(frozen=True)
class Scenario:
    """What member 1 of two does (tests/lies.py), and what must stand in run.json.

    reason, phase: regular expressions. fates: the statuses that member 0 may have. after: a regular
    expression for what the method's evidence failed with after the fault, of nothing if it was in
    force for those that were left; None: it need not have been asked.
    """

    method: str
    lie: str
    reason: str
    status: str = "failed"
    phase: str = "window"
    fates: tuple[str, ...] = ("completed",)
    after: str | None = None


WHO = r"^{}: (not among server \d+'s clients .*: |){} \(PID \d+\)"
FIRST, EITHER = (rf"^member {which} \(\w+\), window: " for which in ("1", "[01]"))
KILLED = FIRST + r"ended by signal 9 \(SIGKILL\); the other 1: 1 completed$"
TOGETHER = EITHER + r"ended by signal 9 \(SIGKILL\); the other 1: 1 killed$"
# Whatever call notices it first: torch's own, or one of cuBLAS or cuDNN.
LIBRARIES = r"CUDA error: CUBLAS_|cuDNN error: "
ASSERTED = rf"\w*Error: ({LIBRARIES}|CUDA error: device-side assert triggered)"
ILLEGAL = rf"\w*Error: ({LIBRARIES}|CUDA error: an illegal memory access was encountered)"
NO_SERVER = r"MPS: (one server was expected|the server was PID|server \d+ is |'get_)"
NEVER = {"phase": "warm", "fates": ("stopped",)}
SCENARIOS = {
    "other_pipe": Scenario("mps", "pipe", WHO.format("MPS", "member 1"), **NEVER),
    "cap_unset": Scenario("mps_equal", "uncapped", WHO.format("mps_equal", "member 1"), **NEVER),
    "limit_unset": Scenario("mps_small", "unlimited", WHO.format("mps_small", "member 1"), **NEVER),
    "wrong_products": Scenario(
        "mps_60",
        "",
        r"^MPS: at 60 % \(\d+ SMs\) bf16 products of \d of 8 sizes are wrong on driver [\d.]+: "
        "not measured$",
        status="unsupported",
        **NEVER,
    ),
    "starves": Scenario(
        "mps_tiny",
        "",
        r"^member [01] \(\w+\), (build|warm): .*; the other 1: 1 out_of_memory$",
        status="out_of_memory",
        phase="build|warm",
        fates=("out_of_memory",),
    ),
    "illegal_naive": Scenario("naive", "illegal", FIRST + ILLEGAL, after="^$"),
    "killed_mps": Scenario("mps", "kill", KILLED, after="^$"),
    "asserts": Scenario("mps", "assert", FIRST + ASSERTED, after="^$"),
    "illegal_mps": Scenario(
        "mps",
        "illegal",
        EITHER + ILLEGAL,
        fates=("failed",),
        after=r"^(MPS: server \d+ is FAULT, not ACTIVE|)$",
    ),
    "hangs": Scenario(
        "mps", "hang", FIRST + "no end of phase 'window'", status="timed_out", after="^$"
    ),
    "server_dies": Scenario(
        "mps",
        "kill_server",
        rf"{EITHER}.*; {NO_SERVER}.*; the other 1: 1 failed",
        fates=("failed",),
        after=f"^{NO_SERVER}",
    ),
    "daemon_dies": Scenario(
        "mps", "kill_daemon", "MPS: 'get_server_list' failed: ", fates=("completed", "failed")
    ),
    "killed_streams": Scenario("streams", "kill", TOGETHER, fates=("killed",)),
    "asserts_streams": Scenario("streams", "assert", EITHER + ASSERTED, fates=("failed",)),
}
CULPRIT = ("killed", "failed", "timed_out", "out_of_memory")  # how member 1 ends

# Members → the methods that share the card between so many.
EVERY_METHOD = {
    1: ["naive", "mig_7g"],
    2: ["naive", "mps", "mps_equal", "mps_overlap", "streams", "mig", "mig_shared", "mig_1g2x"],
}


class Machine:
    """The fake H200, and what is trained on it. `studio` makes a working folder with this GPU."""

    trainer = "tests.torchfree"
    entry = workload(memory_mb=MEMBER_MB)
    methods = ("naive", "mps", "mps_equal", "mps_small", "mps_tiny", "mps_60", "streams")
    timeouts = {"window": 3}
    # A member misbehaves some steps after its go: the window waits for more of them.
    measure = SHORT | {"min_steps": 2 * LATER_STEPS}
    datasets: dict = {}
    visit_s = 0.3  # a window in which somebody comes: this one's members wait for him
    imports = "import os; from tests.fakes import machine"
    use_the_card = "machine.attach(os.environ)"

    def __init__(self, make_studio: Callable[[], Studio]):
        self.make_studio = make_studio

    def studio(self, ladders: list[dict], replicates: int, **measure) -> Studio:
        """A study of the workload `small` under all methods."""
        made = self.with_gpu(self.make_studio())
        made.settings = {
            "trainer": self.trainer,
            "timeout": json.dumps(self.timeouts),
            "source": "synthetic",
        }
        content = study(
            implementations=["bf16"],
            replicates=replicates,
            measure=self.measure | measure,
            datasets=self.datasets,
            variants=VARIANTS,
            ladders=ladders,
        )
        return made.write({"small": self.entry}, drill=content)

    @cached_property
    def wrong(self) -> "Batch":
        """The cells of SCENARIOS."""
        played = {cell_of(name): scenario for name, scenario in SCENARIOS.items()}
        told = lies(**{f"/{cell}/": f"1:{s.lie}" for cell, s in played.items() if s.lie})
        return Batch(self.studio([self.pairs], len(SCENARIOS)), [*played], told)

    @cached_property
    def every(self) -> "Batch":
        """A study of every method."""
        ladder = {"workloads": ["small"], "counts": EVERY_METHOD}
        return Batch(self.studio([ladder], replicates=1), [], {})

    @property
    def pairs(self) -> dict:
        """The ladder of two members under each method."""
        return {"workloads": ["small"], "counts": {2: list(self.methods)}}

    def with_gpu(self, studio: Studio) -> Studio:
        return studio.with_card()

    def uuid(self, studio: Studio) -> str:
        """Of the GPU."""
        with driver.Card(studio.card).open() as state:
            return state["uuid"]

    def assert_as_found(self, studio: Studio) -> None:
        """Nothing runs, nobody is on the card, and its MIG state is the one that was there."""
        studio.assert_no_orphans()
        assert not list(studio.folder.glob("mps-*"))
        assert not machine.mode(studio.card)
        assert machine.layout(studio.card) == []
        assert driver.Card(studio.card).processes() == {}


class RealMachine(Machine):
    """The NVIDIA GPU that is here. Its MIG mode is not touched."""

    trainer = "tests.gpu_trainer"
    timeouts = {"window": 5}
    measure = {
        "kind": "window",
        "window_s": 1.5,
        "min_steps": 2 * LATER_STEPS,
        "warmup_s": 0.5,
        "settle_s": 0.2,
    }
    datasets = {"cifar10": {"train": 2000}}
    visit_s = 8
    imports = "import torch"
    use_the_card = """
x = torch.randn(2048, 2048, device='cuda')
def compute():
    while True:
        torch.mm(x, x)
        torch.cuda.synchronize()
import threading; threading.Thread(target=compute, daemon=True).start()
"""

    def __init__(self, make_studio, device: gpu.Device):
        super().__init__(make_studio)
        self.device = device
        catalogue = yaml.safe_load((CONFIG / "workloads.yaml").read_text())
        self.entry = catalogue["resnet26_cifar10_b128"]

    def with_gpu(self, studio: Studio) -> Studio:
        studio.folder.mkdir(parents=True, exist_ok=True)
        studio.gpu = self.device.uuid
        return studio

    def uuid(self, studio: Studio) -> str:
        return self.device.uuid

    def assert_as_found(self, studio: Studio) -> None:
        studio.assert_no_orphans()
        assert not list(studio.folder.glob("mps-*"))
        until(
            lambda: not any(self.device.processes().values()),
            lambda: f"on the card: {self.device.processes()}",
        )
        assert nvidia.mig_enabled(self.device) in (None, False)


def real_gpu() -> gpu.Device:
    """The GPU that is here, else the test is skipped. Looks through NVML only: a CUDA context of
    this process would be a stranger on the card.
    """
    if gpu.torch_build() != "cuda":
        pytest.skip("the torch that is installed was not built for CUDA")
    device = next(iter(gpu.find()), None)
    if device is None or nvidia.mig_enabled(device):
        pytest.skip("there is no NVIDIA GPU with MIG mode off")
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("MPS is not installed")
    return device


@pytest.fixture(scope="module", params=["fake", "real"])
def on(request, module_studio) -> Machine:
    if request.param == "real":  # which does one thing at a time
        return RealMachine(module_studio, real_gpu())
    fake = Machine(module_studio)
    for batch in (fake.wrong, fake.every):
        batch.begin()
    return fake


class Batch:
    """Cells that one run measures, all of the study's if there are none, and what is around it."""

    def __init__(self, studio: Studio, cells: list[str], environment: dict[str, str]):
        self.studio, self.cells, self.environment = studio, cells, environment
        self.running: Running | None = None

    def begin(self) -> None:
        if self.running is None:
            targets = self.studio.only(*(f"{cell}/a1" for cell in self.cells))
            every = ["--until", "collocate"]
            self.running = self.studio.start(
                *(targets if self.cells else every), **self.environment
            )

    def records(self, *cells: str) -> list[dict]:
        """Of these cells, or all, once all have ended."""
        self.begin()
        run = self.running.end(LONG)
        assert run.code == 0, run.output
        if not cells:
            return list(self.studio.records().values())
        return [self.studio.record(f"{cell}/a1") for cell in cells]


def pair(method: str, replicate: int) -> str:
    return f"2x_small/bf16/{method}/r{replicate}"


def cell_of(name: str) -> str:
    """Replicates go one after the other: after each fault comes the next."""
    return pair(SCENARIOS[name].method, list(SCENARIOS).index(name) + 1)


def assert_fine(record: dict) -> None:
    """Completed by all its members, its method proven at both ends."""
    assert record["status"] == "completed", record["reason"]
    assert record["method"]["verified"] is True
    assert {e["verified"] for e in record["method"]["evidence"].values()} == {True}
    assert list(record["method"]["evidence"]) == ["barrier", "end"]
    for member in record["members"]:
        assert member["status"] == "completed"
        assert member["windows"]["window"]["samples_per_s"] > 0
        assert member["sm_source"] and member["memory_free"] > 0


@contextlib.contextmanager
def visitor(on: Machine, studio: Studio) -> Iterator[Callable[[], int]]:
    """Somebody's process; what is given has it compute on the card, and says its PID."""
    turn = "print(flush=True); input()"
    code = "\n".join([on.imports, turn, on.use_the_card, turn])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=studio.environment(CUDA_VISIBLE_DEVICES=on.uuid(studio)),
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def come() -> int:
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            return process.pid

        process.stdout.readline()
        yield come
        assert process.poll() is None  # nobody has ended it
        process.kill()


# -- others on the card ----------------------------------------------------------------------------

NAIVE_AND_MPS = {"workloads": ["small"], "counts": {1: ["naive"], 2: ["mps"]}}


def test_others_on_the_card_are_waited_for_as_long_as_is_asked_and_cost_no_attempt(on):
    """A run gives up once on those who stay, and the next one carries on when they have gone."""
    studio = on.studio([NAIVE_AND_MPS], replicates=1)
    with visitor(on, studio) as come:
        pid = come()
        run = studio.measure(config={"wait": "1s"})
        assert not studio.records()
        running = studio.start("--until", "collocate", config={"wait": "2m"})
        words = "waiting for the GPU, 2m at most: a cell needs the GPU to itself, and "
        until(lambda: words in running.output, lambda: running.output)
        planned = studio.plan().output
    assert run.code == 1, run.output
    who = rf"others compute on it: PID {pid} \(python\S*, owner \w+\)"
    left = rf"^2 cells are left: a cell needs the GPU to itself, and {who}; the same command "
    assert re.search(left, run.output, re.M), run.output
    assert run.output.count("waiting for the GPU") == 1
    assert "Error" not in run.output and "Exception" not in run.output, run.output
    assert "2 to run now" in planned
    run = running.end(LONG)
    assert run.code == 0, run.output
    assert run.output.count(f"PID {pid} (") == 1
    records = studio.records()
    assert {cell.rpartition("/")[2] for cell in records} == {"a1"} and len(records) == 2
    for record in records.values():
        assert_fine(record)
    on.assert_as_found(studio)


def test_who_comes_in_mid_cell_has_it_measured_again(on):
    studio = on.studio([on.pairs], replicates=1, window_s=on.visit_s)
    cell = f"{pair('mps', 1)}/a1"
    with contextlib.ExitStack() as visit:
        come = visit.enter_context(visitor(on, studio))
        with studio.held(cell, *studio.only(cell)) as (running, hold):
            pid = come()
            hold.unlink()
            until(lambda: "waiting for the GPU" in studio.log(cell), lambda: running.output)
            visit.close()
            run = running.end(LONG)
    assert run.code == 0, run.output
    assert run.output.count(f"PID {pid} (") == 1
    record = studio.record(cell)
    assert_fine(record)
    assert flags_of(record) == [] and record["telemetry"]["strangers"] == []
    on.assert_as_found(studio)


def test_what_a_killed_conductor_leaves_is_swept_by_the_next_cell_which_completes(on):
    studio, cell = on.studio([on.pairs], replicates=1), pair("mps", 1)
    studio.settings["wait"] = "0s"
    assert studio.prepare().code == 0
    running = studio.conduct(f"{cell}/a1", **lies(**{f"/{cell}/": "1:hang"}))
    until(
        lambda: "started:" in studio.log(f"{cell}/a1") or running.process.poll() is not None,
        lambda: running.output,
        LONG,
    )
    running.process.kill()
    assert running.end().code != 0
    assert not studio.records() and list(studio.folder.glob("mps-*"))
    assert_fine(studio.measured(f"{cell}/a2", LONG))
    on.assert_as_found(studio)


# -- whole studies ---------------------------------------------------------------------------------

# What a MIG method makes of the card for so many.
LAYOUTS = {
    "mig": "2x 3g.71gb",
    "mig_7g": "7g.141gb",
    "mig_shared": "2x 3c in 7g.141gb",
    "mig_1g2x": "2x 1g.35gb",
}


def test_every_method_is_proven_in_force_once_an_administrator_has_switched_mig_on(on):
    if isinstance(on, RealMachine):
        pytest.skip("the MIG mode of this machine's GPU is not to be switched")
    refused = [r for r in on.every.records() if r["status"] == "unsupported"]
    assert {record["cell"]["method"] for record in refused} == LAYOUTS.keys()
    assert all("MIG mode is off" in record["reason"] for record in refused)
    machine.switch(on.every.studio.card, True)
    assert on.every.studio.measure().code == 0
    machine.switch(on.every.studio.card, False)
    found = [r for r in on.every.studio.records().values() if r["status"] != "unsupported"]
    records = {record["cell"]["method"]: record for record in found}
    assert records.keys() == {method for methods in EVERY_METHOD.values() for method in methods}
    for record in found:
        assert_fine(record)
    for method, layout in LAYOUTS.items():
        assert records[method]["method"]["evidence"]["end"]["layout"] == layout
    members = {method: record["members"] for method, record in records.items()}
    devices = {method: {m["device_uuid"] for m in of} for method, of in members.items()}
    assert all(uuid.startswith("MIG-") for method in LAYOUTS for uuid in devices[method])
    assert len(devices["mig"]) == 2 == len(devices["mig_shared"])
    shares = {method: [m["sm_count"] for m in of] for method, of in members.items()}
    assert shares["mps_equal"] == [66, 66] and shares["mps_overlap"] == [132, 132]
    assert shares["mig"] == [60, 60] and shares["mig_1g2x"] == [26, 26]
    on.assert_as_found(on.every.studio)


# -- members that misbehave ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cell_that_goes_wrong_says_how_and_leaves_nothing_behind(on, name):
    scenario = SCENARIOS[name]
    [record] = on.wrong.records(cell_of(name))
    assert record["status"] == scenario.status, record["reason"]
    assert re.fullmatch(scenario.phase, record["phase"])
    assert re.search(scenario.reason, record["reason"]), record["reason"]
    assert "\n" not in record["reason"]
    neighbour, culprit = record["members"]
    assert neighbour["status"] in scenario.fates, neighbour["error"]
    assert culprit["status"] in (*CULPRIT, *scenario.fates)
    assert bool(neighbour["error"]) == (neighbour["status"] not in ("completed", "stopped"))
    evidence = record["method"]["evidence"]
    if scenario.phase == "window":
        assert evidence["barrier"]["verified"] is True
    elif scenario.phase == "warm":  # nothing is measured of a member that lies about itself
        assert evidence == {"barrier": {"verified": False, "reason": record["reason"]}}
        assert not record["windows"] and record["method"]["verified"] is False
    if scenario.after is not None:
        assert re.search(scenario.after, evidence["fault"].get("reason", ""))
    on.assert_as_found(on.wrong.studio)
