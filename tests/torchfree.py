"""A trainer without torch, for drills: the member protocol with sleeps for steps.

model_args may hold:
  step_s: seconds per training step (0.01);
  memory_mb: device memory that it wants, where there is a device to have it from (0);
  holds: whether it can be held between steps (1);
  and, each naming a phase ("before" the first event, build, warm, window, stop), one misbehaviour:
  die: {"phase": ..., "signal": n or "exit": code}, hang, oom, error,
  garbage (rubbish on the event pipe), spawn (a grandchild that would outlive the member).
Anything else in model_args is an error.

The environment may say, without changing the cell that is measured:
  COLLOCATION_HOLD: a file; while it exists, members stand still in their window;
  COLLOCATION_BEHAVE: any value; nobody misbehaves;
  COLLOCATION_LIES: see tests/lies.py;
  COLLOCATION_FAKE_NVML: the card of tests/fakes, on which members then compute.
"""

import contextlib
import os
import signal
import threading
import time
import zipfile
from array import array
from pathlib import Path

from tests.lies import lie_of
from workflow.collocation.member.spec import MemberSpec

if "COLLOCATION_FAKE_NVML" in os.environ:  # elsewhere a server is there in half the time
    from tests.fakes import driver, machine

NUMBERS = {"step_s": 0.01, "memory_mb": 0, "holds": 1}
MISBEHAVIOURS = ("hang", "oom", "error", "garbage", "spawn")
PROGRESS_NS = 100_000_000


def preload() -> None:
    print("torch-free trainer ready")


class PhaseError(RuntimeError):
    def __init__(self, phase: str):
        super().__init__(f"asked to fail in {phase} (größer)\nSet NOTHING=1 to hear no more of it.")
        self.phase = phase


class OutOfMemory(Exception):
    def __init__(self, phase: str):
        super().__init__(f"asked to run out of memory in {phase}")
        self.phase = phase


class AcceleratorError(RuntimeError):
    """As torch calls what CUDA reports."""


class Context:
    """A CUDA context on the card of tests/fakes, and what a device tells of itself.

    Without a card: the device that a CPU is.
    """

    broken = False  # for all jobs of this process
    building = threading.Lock()

    def __init__(self, spec: MemberSpec, memory_mb: int):
        self.facts = {"device_name": "no device", "device_uuid": None, "sm_count": None}
        self.server = None  # its PID, where this process is an MPS client
        if "COLLOCATION_FAKE_NVML" not in os.environ or spec.device != "cuda":
            return
        card, _ = machine.chosen(os.environ)
        try:
            self.facts = machine.attach(os.environ, memory_mb=memory_mb)
        except RuntimeError as error:
            raise (OutOfMemory("build") if "memory" in str(error) else error) from None
        if self.facts["memory_free"] < memory_mb * 2**20:
            raise OutOfMemory("build")
        there = driver.Card(card).processes()
        self.pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "none"))
        if there[os.getpid()]["kind"] == "mps":
            place = self.facts["device_uuid"]
            servers = {p: entry for p, entry in there.items() if entry["kind"] == "server"}
            [self.server] = [p for p, entry in servers.items() if entry["place"] == place]

    def hurt(self, kind: str) -> None:
        """An assertion that fails harms its own context, with all jobs that are in it; an illegal
        address the whole server.
        """
        Context.broken = True
        if kind == "illegal" and self.server:
            (self.pipe / "fault").touch()
        raise AcceleratorError(
            "CUDA error: device-side assert triggered"
            if kind == "assert"
            else "CUDA error: an illegal memory access was encountered"
        )

    def synchronise(self) -> None:
        """Raise what has become of the context."""
        if Context.broken:
            raise AcceleratorError("CUDA error: the context is broken")
        if not self.server:
            return
        if (self.pipe / "fault").exists():
            raise AcceleratorError("CUDA error: an illegal memory access was encountered")
        dropped = not (self.pipe / "clients" / str(os.getpid())).exists()
        if dropped or driver.birth(self.server) is None:
            raise AcceleratorError("CUDA error: the MPS client has been terminated")


class Script:
    """What model_args asks for; `at(phase)` does it."""

    def __init__(self, arguments: dict, events_fd: int):
        unknown = set(arguments) - {*NUMBERS, *MISBEHAVIOURS, "die"}
        if unknown:
            raise ValueError(f"unknown model_args: {', '.join(sorted(unknown))}")
        self.numbers = NUMBERS | {key: arguments[key] for key in NUMBERS if key in arguments}
        self.die = arguments.get("die", {})
        self.plan = {key: arguments[key] for key in MISBEHAVIOURS if key in arguments}
        self.hold = os.environ.get("COLLOCATION_HOLD")
        if self.die:
            self.plan["die"] = self.die["phase"]
        if os.environ.get("COLLOCATION_BEHAVE"):
            self.plan = {}
        self.phase = "build"
        self.events_fd = events_fd

    def at(self, phase: str) -> None:
        self.phase = phase
        todo = [key for key, when in self.plan.items() if when == phase]
        if "garbage" in todo:
            rubbish = b'\xff{not json\n[1]\n{"event": "exited", "code": 0}\n{"event":'
            os.write(self.events_fd, rubbish)
            os.write(self.events_fd, b' "noise"}\n')
        if "spawn" in todo:
            worker = os.fork()  # as torch's loaders do it
            while worker == 0:
                signal.pause()
            print(f"grandchild {worker}")
        if "die" in todo and "exit" in self.die:
            os._exit(self.die["exit"])
        if "die" in todo:
            os.kill(os.getpid(), self.die["signal"])
        if "error" in todo:
            raise PhaseError(phase)
        if "oom" in todo:
            raise OutOfMemory(phase)
        if "hang" in todo:
            print(f"hangs in {phase}", flush=True)
        while "hang" in todo:
            signal.pause()
        while phase == "window" and self.hold and Path(self.hold).exists():
            time.sleep(0.005)


def main(spec: MemberSpec, channel) -> int:
    script = Script(getattr(spec.job, "model_args", {}), channel._events)
    try:
        train(spec, channel, script)
    except OutOfMemory as error:
        error.phase = "build" if error.phase == "before" else error.phase
        error.out_of_memory = True
        raise
    except AcceleratorError as error:
        error.phase = script.phase
        raise
    return 0


def together(specs: list[MemberSpec], channels: list) -> int:
    """A thread for each, as models/streams.py has them of jobs that launch kernel by kernel."""

    def run(spec: MemberSpec, channel) -> None:
        try:
            code = main(spec, channel)
        except Exception as error:
            code = channel.failed(error)
        channel.emit("exited", code=code, signal=None)

    pairs = zip(specs, channels, strict=True)
    threads = [threading.Thread(target=run, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def train(spec: MemberSpec, channel, script: Script) -> None:
    script.at("before")
    print(f"member {spec.index} in process {os.getpid()}")
    print(f"from {time.monotonic_ns()}")
    os.sched_setaffinity(0, spec.cores)
    script.at("build")
    lie = lie_of(spec)
    lie.before_cuda()
    with Context.building:
        context = Context(spec, script.numbers["memory_mb"])
    if hasattr(spec.job, "dataset_folder"):
        (Path(spec.job.dataset_folder) / "manifest.json").read_bytes()
    channel.emit(
        "built",
        pid=os.getpid(),
        parameters=1000 + spec.index,
        parameter_bytes=4000,
        resident_bytes=0,
        threads=spec.threads,
        cores=sorted(os.sched_getaffinity(0)),
        commands=["hold"] * script.numbers["holds"],
        stream=1000 + spec.index if spec.on_stream else None,
        seconds={"model": 0.0},
        **context.facts,
        descriptors=open_files(),
        group=os.getpgid(0),
        environment={name: os.environ.get(name) for name in spec.environment},
    )

    losses: list[tuple[int, float]] = []
    ends: list[int] = []
    step_s = script.numbers["step_s"]
    every = spec.loss_interval_steps

    def step() -> None:
        time.sleep(step_s)
        context.synchronise()
        number = warmed + len(ends)
        if number % every == 0:
            losses.append((number, loss(spec.seed, number)))

    warmed, told = 0, False
    for index in range(spec.warmup_steps):
        if told := channel.poll() == "stop":  # who is told to stop while it warms up says no more
            break
        step()
        warmed += 1
        if index == spec.warmup_steps // 2:
            script.at("warm")
    if not told:
        channel.emit("warm", steps=warmed, step_s=step_s)

    command = "stop" if told else channel.wait()
    if command not in ("go", "stop"):
        raise ValueError(f"unknown command {command!r}")
    if command == "go":
        channel.emit("started")
        told = time.monotonic_ns()
        while (command := channel.poll()) in (None, "hold", "save"):
            if command == "hold":
                channel.emit("held", steps=len(ends))
                while (command := channel.wait()) == "save":
                    save(spec, channel, ends)
                if command != "resume":
                    break
                continue
            if command == "save":
                save(spec, channel, ends)
            step()
            ends.append(time.monotonic_ns())
            if len(ends) == 3:
                script.at("window")
            if lie.after_step(len(ends)):
                context.hurt(lie.kind)
            if ends[-1] - told >= PROGRESS_NS:
                told = ends[-1]
                channel.emit("progress", steps=len(ends), samples=len(ends) * spec.batch_size)
            if len(ends) == spec.window_steps:
                channel.emit("done", t=ends[-1])
                command = channel.wait()
                break
        if command != "stop":
            raise ValueError(f"unknown command {command!r}")

    script.at("stop")
    context.synchronise()
    print(f"until {time.monotonic_ns()}")
    save_steps(spec, ends, losses)
    channel.emit(
        "stopped",
        steps=len(ends),
        samples=len(ends) * spec.batch_size,
        memory_peak_allocated=None,
        memory_peak_reserved=None,
        data_wait_share=0.0,
        file="steps.npz",
    )


def save(spec: MemberSpec, channel, ends: list[int]) -> None:
    save_steps(spec, ends, [])
    channel.emit("saved")


def save_steps(spec: MemberSpec, ends: list[int], losses: list[tuple[int, float]]) -> None:
    savez(
        Path(spec.folder) / "steps.npz",
        end_ns=array("q", ends),
        wait_ns=array("q", bytes(8 * len(ends))),
        loss_step=array("q", [number for number, _ in losses]),
        loss=array("f", [value for _, value in losses]),
    )


def savez(path: Path, **arrays: array) -> None:
    """As numpy's, which would take longer to import than everything else here."""
    with zipfile.ZipFile(path, "w") as file:
        for name, values in arrays.items():
            kind = {"q": "<i8", "f": "<f4"}[values.typecode]
            header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({len(values)},)}}"
            header = f"{header:117}\n".encode()  # 128 bytes with the ten before it
            magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
            file.writestr(f"{name}.npy", magic + header + values.tobytes())


def loss(seed: int, step: int) -> float:
    """The same for every run with this seed, falling."""
    return (1 + (seed % 7) / 100) / (2 + step / 10)


def open_files() -> dict[str, str]:
    """What each descriptor of this process is."""
    folder = Path("/proc/self/fd")
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    files = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # the listing's own, closed by now
            files[name] = str((folder / name).readlink())
    return files
