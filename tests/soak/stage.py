"""One round of a soak: its study, its runs, and what is looked for after each."""

import contextlib
import fcntl
import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes import machine
from tests.soak import plan, reader
from tests.soak.scene import Scene
from tests.studio import STUDY, Result, Studio, study, workload

BOUND_S = 400.0  # for a run, on a busy machine
GONE_S = 30.0  # for all processes, after a run
CLEAN_RUNS = 4  # without a fault, until all cells have a result
TIMEOUTS = {"build": 40, "warm": 25, "window": 12, "stop": 8}
# Temporary files that a killed process leaves, of torch, Snakemake, multiprocessing and ours: an
# empty folder. Those with something in them (mps-) are swept by the next cell.
LEFT = ("torchinductor_", "snakemake", "pymp-", "no-mps-")
MEASURE = {"kind": "window", "window_s": 1.2, "min_steps": 4, "warmup_s": 0.2, "settle_s": 0.1}


@dataclass
class Tally:
    """What a soak found, over all rounds."""

    rounds: int = 0
    runs: int = 0
    faults: Counter = field(default_factory=Counter)
    records: Counter = field(default_factory=Counter)  # by status
    slowest_run_s: float = 0.0
    slowest_end_s: float = 0.0  # of the last process after a run
    violations: list[dict] = field(default_factory=list)
    suspicions: list[dict] = field(default_factory=list)  # for somebody to look at


@dataclass
class Stage:
    """One round: its folder, what has been seen there, and what is wrong."""

    plan: plan.Round
    base: Path
    tally: Tally
    seen: dict[Path, str] = field(default_factory=dict)  # run.json → hash at first sight
    stamps: dict[Path, tuple] = field(default_factory=dict)
    deeds: list[dict] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    run: int = 0
    disk: Path | None = None

    def __post_init__(self):
        self.folder = self.base / f"round-{self.plan.number}"
        self.temporary = self.base / f"tmp-{self.plan.number}"
        self.locks = self.base / f"locks-{self.plan.number}"
        self.studio = Studio(self.folder, self.base / "data", self.locks, cold=True)

    def wrong(self, what: str, suspicion: bool = False) -> None:
        again = f"python -m tests.soak --seed {self.plan.seed} --round {self.plan.number}"
        entry = {"round": self.plan.number, "run": self.run, "what": what, "again": again}
        (self.tally.suspicions if suspicion else self.tally.violations).append(entry)
        self.found.append(what)
        print(f"  {'suspicion' if suspicion else 'VIOLATION'}, run {self.run}: {what}", flush=True)

    # -- the study ----------------------------------------------------------------------------

    def write(self, replicates: int) -> None:
        ladders = [{"workloads": ["work"], **plan.LADDERS[name]} for name in self.plan.ladders]
        content = study(ladders=ladders, measure=MEASURE, replicates=replicates, cores_for=2)
        self.studio.write({"work": workload(step_s=0.01, memory_mb=100)}, **{STUDY: content})

    def prepare(self) -> None:
        self.temporary.mkdir()
        timeouts = {"timeout": json.dumps(TIMEOUTS), "attempts": "9", "wait": "15s"}
        self.studio.settings = timeouts | {"mig_mode": "switch"}
        self.studio.with_card()
        self.studio.surroundings["TMPDIR"] = str(self.temporary)

    # -- runs -----------------------------------------------------------------------------------

    def perform(self) -> None:
        for faults in self.plan.runs:
            self.write(self.run + 1)
            self.one_run(faults)
        for _ in range(CLEAN_RUNS):
            result = self.one_run(())
            left = reader.unfinished(self.studio.results)
            if result.code == 0 and not left:
                break
        else:
            self.wrong(f"not complete after {CLEAN_RUNS} runs without a fault: {left}")
            return
        before = dict(self.seen)
        result = self.one_run(())
        if result.code != 0 or before.keys() != self.seen.keys():
            self.wrong("a run of a complete study measures again, or fails")
        self.check_end()

    def one_run(self, faults: tuple[plan.Fault, ...]) -> Result:
        self.run += 1
        began, before = time.monotonic(), set(self.seen)
        with Scene(self.studio, faults, self.disk, self.look) as scene:
            running = self.studio.start()
            ended = scene.watch(running, BOUND_S)
            took = time.monotonic() - began
            if not ended:
                self.wrong(f"did not end within {BOUND_S:.0f} s after {scene.deeds}")
                self.studio.kill_all()
            result = running.end()
            slow = self.orphans()
        tally = self.tally
        tally.runs += 1
        tally.slowest_run_s = max(tally.slowest_run_s, took)
        tally.slowest_end_s = max(tally.slowest_end_s, slow)
        tally.faults.update(f"{deed['victim']} {deed['what']}" for deed in scene.deeds)
        self.deeds += scene.deeds
        self.look()
        new = self.seen.keys() - before
        self.check_run(result, scene.deeds, new)
        done = [f"{deed['victim']} {deed['what']}" for deed in scene.deeds]
        print(
            f"  run {self.run}: {took:.0f} s, exit {result.code}, {done} of {len(faults)} faults, "
            f"{len(new)} new records",
            flush=True,
        )
        return result

    def orphans(self) -> float:
        """Seconds until no process of ours was left."""
        began = time.monotonic()
        while left := self.studio.alive():
            if time.monotonic() > began + GONE_S:
                self.wrong(f"left running {GONE_S:.0f} s after the run: {left}")
                self.studio.kill_all()
                break
            time.sleep(0.05)
        return time.monotonic() - began

    # -- checks ---------------------------------------------------------------------------------

    def look(self) -> None:
        """A result, once seen, stays as it is for ever; and is whole when it is there at all."""
        there = set()
        for path in self.studio.results.glob("cells/*/*/*/r*/a*/run.json"):
            with contextlib.suppress(FileNotFoundError):
                told = path.stat()
                there.add(path)
                stamp = (told.st_ino, told.st_mtime_ns, told.st_size)
                if self.stamps.get(path) == stamp:
                    continue
                content = path.read_bytes()
                self.stamps[path] = stamp
                try:
                    status = json.loads(content)["status"]
                except (ValueError, KeyError, TypeError):
                    self.wrong(f"{self.name(path)} is torn: {content[:80]!r}")
                    continue
                found = hashlib.sha256(content).hexdigest()
                if status in reader.KEPT and self.seen.setdefault(path, found) != found:
                    self.wrong(f"{self.name(path)} changed after it was first seen")
                    self.seen[path] = found
        for path in self.seen.keys() - there:
            self.wrong(f"{self.name(path)} is lost")
            del self.seen[path]

    def name(self, path: Path) -> str:
        return path.relative_to(self.studio.results / "cells").as_posix()

    def check_run(self, result: Result, deeds: list[dict], new: set[Path]) -> None:
        every = reader.records(self.studio.results)
        faulty = False
        for path in sorted(new & every.keys()):
            record, name = every[path], self.name(path)
            self.tally.records[record["status"]] += 1
            for what in [*reader.lies(path), *reader.denied(path, record, deeds)]:
                self.wrong(f"{name}: {what}")
            faulty |= record["status"] in reader.FAULTS
            if record["status"] in reader.FAULTS and not deeds:
                self.wrong(f"{name}: {record['status']}: {record['reason']}", True)
        if not deeds and result.code != 0 and not faulty:
            self.wrong(f"exit {result.code} without a fault: {result.output[-600:]}")
        _, traceback, told = result.output.partition("Traceback (most recent call last)")
        if traceback:
            self.wrong(f"a traceback after {deeds}: …{told[-500:]}", True)

    def check_end(self) -> None:
        results = self.studio.results
        if not (results / "complete").exists():
            self.wrong("there is no file 'complete'")
        for path in [*self.locks.glob("*"), results / ".lock"]:
            with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.wrong(f"the lock {path} is held")
        hard = any(deed["what"] in ("KILL", "HANG", "STOP", "SEGV") for deed in self.deeds)
        names = sorted(entry.name for entry in self.temporary.iterdir())
        if left := [name for name in names if not name.startswith(LEFT)]:
            self.wrong(f"left in TMPDIR: {left}", suspicion=hard)
        left = [str(p) for p in (*results.rglob(".run.json*"), *results.rglob("cells/**/tmp*"))]
        if left:
            self.wrong(f"left in the results: {left}", suspicion=hard)
        card = self.studio.card
        if (machine.mode(card), machine.layout(card)) != ((False, False), []):
            self.wrong("the card's MIG state is not as it was found")
