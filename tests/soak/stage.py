"""One round of a soak: its study, its runs, and what is looked for after each."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.fakes import machine
from tests.soak import plan, reader
from tests.soak.scene import Scene
from tests.studio import STUDY, Result, Studio, workload
from workflow.collocation.schema.study import CONFIG, Config

BOUND_S = 400.0  # for a run, on a busy machine
GONE_S = 30.0  # for all processes, after a run
CLEAN_RUNS = 4  # without a fault, until all cells have a result
TIMEOUTS = {"build": 40, "warm": 25, "window": 12, "stop": 8}
# Temporary files that a killed process leaves, of torch, Snakemake, multiprocessing and ours: an
# empty folder. Those with something in them (mps-) are swept by the next cell.
LEFT = ("torchinductor_", "snakemake", "pymp-", "no-mps-")
MEASURE = {"kind": "window", "window_s": 1.2, "min_steps": 4, "warmup_s": 0.2, "settle_s": 0.1}
DATASETS = {
    "imagenet": {"train": 48, "validation": 16},
    "criteo": {"train": 4096, "validation": 512},
}
SCRIPT = """
import time
from models.hook import step
value = 1.0
for index in range(10**9):
    end = time.monotonic() + 0.01
    while time.monotonic() < end:
        value = value * 0.999 + 0.001
    step(loss=value)
"""


@dataclass
class Tally:
    """What a soak found, over all rounds."""

    rounds: int = 0
    runs: int = 0
    faults: Counter = field(default_factory=Counter)
    missed: int = 0
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
    data: Path
    seen: dict[Path, str] = field(default_factory=dict)  # run.json → hash at first sight
    planted: set[Path] = field(default_factory=set)
    stamps: dict[Path, tuple] = field(default_factory=dict)
    deeds: list[dict] = field(default_factory=list)
    read: set[Path] = field(default_factory=set)
    found: list[str] = field(default_factory=list)
    run: int = 0
    disk: Path | None = None

    def __post_init__(self):
        self.folder = self.base / f"round-{self.plan.number}"
        self.temporary = self.base / f"tmp-{self.plan.number}"
        self.locks = self.base / f"locks-{self.plan.number}"
        self.studio = Studio(self.folder, self.data, self.locks, cold=True)

    def wrong(self, what: str, suspicion: bool = False) -> None:
        again = f"python -m tests.soak --seed {self.plan.seed} --round {self.plan.number}"
        entry = {"round": self.plan.number, "run": self.run, "what": what, "again": again}
        (self.tally.suspicions if suspicion else self.tally.violations).append(entry)
        self.found.append(what)
        print(f"  {'suspicion' if suspicion else 'VIOLATION'}, run {self.run}: {what}", flush=True)

    # -- the study ----------------------------------------------------------------------------

    def write(self, replicates: int) -> None:
        card = self.plan.machine == "card"
        parts = plan.CARD if card else plan.CPU
        chosen = [parts[name] for name in self.plan.parts]
        ladders = [part for part in chosen if "counts" in part]
        mixes = [part | {"methods": ["naive"]} for part in chosen if "members" in part]
        content = {"description": "a soak", "seed": 5, "replicates": replicates, "cores_for": 2}
        content |= {"arms": ["paper_step"], "measure": MEASURE, "ladders": ladders, "mixes": mixes}
        content["datasets"] = {} if card else DATASETS
        catalogue = {"work": workload(step_s=0.01, memory_mb=100)}
        if not card:
            catalogue = yaml.safe_load((CONFIG / "workloads.yaml").read_text())
            run = {"run": ["python", "train.py"], "folder": "theirs", "steps": "hook"}
            catalogue["script"] = {"kind": "command", **run, "batch_size": 8, "warmup_steps": 5}
            (self.folder / "theirs").mkdir(exist_ok=True)
            (self.folder / "theirs" / "train.py").write_text(SCRIPT)
        self.studio.write(catalogue, **{STUDY: content})

    def prepare(self) -> None:
        self.temporary.mkdir()
        self.studio.surroundings = {}
        self.studio.settings = {
            "timeout": json.dumps(TIMEOUTS),
            "attempts": "9",
            "source": "synthetic",
            "wait": "15s" if "wait" in Config.model_fields else None,
        }
        if self.plan.machine == "card":
            self.studio.with_card()
            self.studio.settings |= {"mig_mode": "switch"}
            state = json.loads((self.studio.card / "state.json").read_text())
            self.studio.surroundings["SOAK_CARD"] = state["uuid"]
        else:
            self.studio.settings |= {"trainer": None}
        self.studio.surroundings["TMPDIR"] = str(self.temporary)

    # -- runs -----------------------------------------------------------------------------------

    def perform(self) -> None:
        for act in self.plan.acts:
            self.write(self.run + 1)
            for name in act.files:
                self.damage(name)
            self.one_run(act.faults, act.whole)
        for _ in range(CLEAN_RUNS):
            result = self.one_run((), True)
            left = self.left()
            if result.code == 0 and not left:
                break
        else:
            self.wrong(f"not complete after {CLEAN_RUNS} runs without a fault: {left}")
            return
        before = dict(self.seen)
        result = self.one_run((), True)
        if result.code != 0 or before.keys() != self.seen.keys():
            self.wrong("a run of a complete study measures again, or fails")
        self.check_end()

    def left(self) -> list[str]:
        results = self.studio.results
        if not (results / "plan.json").exists():
            return ["there is no plan"]
        return reader.unfinished(results, reader.records(results))

    def one_run(self, faults: tuple[plan.Fault, ...], whole: bool) -> Result:
        self.run += 1
        self.tally.runs += 1
        arguments = [] if whole else ["--until", "collocate"]
        began = time.monotonic()
        before = set(self.seen)
        with Scene(self.studio, faults, self.disk, self.look) as scene:
            running = self.studio.start(*arguments)
            ended = scene.watch(running, BOUND_S)
            took = time.monotonic() - began
            if not ended:
                left = [" ".join(p.cmdline()[-4:]) for p in self.studio.alive()]
                self.wrong(f"did not end within {BOUND_S:.0f} s after {scene.deeds}: {left}")
                self.studio.kill_all()
            result = running.end()
            slow = self.orphans()
        self.tally.slowest_run_s = max(self.tally.slowest_run_s, took)
        self.tally.slowest_end_s = max(self.tally.slowest_end_s, slow)
        self.tally.faults.update(f"{deed['victim']} {deed['what']}" for deed in scene.deeds)
        self.tally.missed += len(scene.missed)
        self.deeds += scene.deeds
        self.look()
        self.check_run(result, scene, self.seen.keys() - before)
        done = ", ".join(f"{deed['victim']} {deed['what']}" for deed in scene.deeds) or "no fault"
        missed = f" (not fired: {len(scene.missed)})" if scene.missed else ""
        print(
            f"  run {self.run}: {took:.0f} s, exit {result.code}, {done}{missed}, "
            f"{len(self.seen.keys() - before)} new records",
            flush=True,
        )
        return result

    def orphans(self) -> float:
        """Seconds until no process of ours was left."""
        began = time.monotonic()
        while left := self.studio.alive():
            if time.monotonic() > began + GONE_S:
                told = []
                for process in left:
                    with contextlib.suppress(Exception):
                        told.append(f"{process.pid} {process.status()} {process.cmdline()[-4:]}")
                self.wrong(f"left running {GONE_S:.0f} s after the run: {told}")
                self.studio.kill_all()
                break
            time.sleep(0.05)
        return time.monotonic() - began

    # -- checks ---------------------------------------------------------------------------------

    def look(self) -> None:
        """A result, once seen, stays as it is for ever; and is whole when it is there at all."""
        there = {}
        for path in self.studio.results.glob("cells/*/*/*/r*/a*/run.json"):
            with contextlib.suppress(FileNotFoundError):
                told = path.stat()
                stamp = (told.st_ino, told.st_mtime_ns, told.st_size)
                if self.stamps.get(path) == stamp:
                    there[path] = self.seen.get(path)
                    continue
                content = path.read_bytes()
                there[path] = hashlib.sha256(content).hexdigest()
                self.stamps[path] = stamp
                try:
                    status = json.loads(content)["status"]
                except (ValueError, KeyError, TypeError):
                    if path not in self.planted:
                        self.wrong(f"{self.name(path)} is torn: {content[:80]!r}")
                    continue
                self.planted.discard(path)
                if status not in reader.KEPT:
                    continue
                known = self.seen.setdefault(path, there[path])
                if known != there[path]:
                    self.wrong(f"{self.name(path)} changed after it was first seen")
                    self.seen[path] = there[path]
        for path in self.seen.keys() - there.keys():
            self.wrong(f"{self.name(path)} is lost")
            del self.seen[path]

    def name(self, path: Path) -> str:
        return path.relative_to(self.studio.results / "cells").as_posix()

    def check_run(self, result: Result, scene: Scene, new: set[Path]) -> None:
        every = reader.records(self.studio.results)
        for path in sorted(new & every.keys()):
            record = every[path]
            self.tally.records[record["status"]] += 1
            for what in [*reader.lies(path), *reader.denied(path, record, scene.deeds)]:
                self.wrong(f"{self.name(path)}: {what}")
            if record["status"] == "completed" and self.plan.machine == "card":
                if (record["gpu"] or {}).get("uuid") != self.studio.surroundings["SOAK_CARD"]:
                    self.wrong(f"{self.name(path)}: completed, and not on the card")
                self.check_company(path, record, scene.deeds)
            if record["status"] in reader.FAULTS and not scene.deeds:
                self.wrong(f"{self.name(path)}: {record['status']}: {record['reason']}", True)
            for deed in scene.deeds:
                killed = (deed["victim"], deed["what"]) == ("conductor", "KILL")
                late = path.stat().st_mtime > deed["wall"] + 0.5
                if killed and late and deed["cell"] == str(Path(self.name(path)).parent):
                    self.wrong(f"{self.name(path)}: written after its conductor was killed")
        if not scene.deeds and result.code != 0 and not self.faulty(new, every):
            self.wrong(f"exit {result.code} without a fault: {result.output[-600:]}")
        if "Traceback (most recent call last)" in result.output:
            at = result.output.index("Traceback (most recent")
            told = [f"{deed['victim']} {deed['what']} {deed['phase']}" for deed in scene.deeds]
            self.wrong(f"a traceback after {told}: …{result.output[at:][-500:]}", True)

    def faulty(self, new: set[Path], every: dict[Path, dict]) -> bool:
        return any(every[p]["status"] in reader.FAULTS for p in new & every.keys())

    def check_company(self, path: Path, record: dict, deeds: list[dict]) -> None:
        """A stranger who was there for most of a window is named by the record."""
        for deed in deeds:
            if deed["victim"] != "company" or deed["what"] == "daemon":
                continue
            for window in record["windows"]:
                until = deed["until_ns"] or window["end_ns"]
                both = min(until, window["end_ns"]) - max(deed["t_ns"], window["start_ns"])
                told = "shared_gpu" in record["flags"] or deed["what"] != "stranger"
                if both > 0.6 * (window["end_ns"] - window["start_ns"]) and not told:
                    share = both / (window["end_ns"] - window["start_ns"])
                    self.wrong(f"{self.name(path)}: silent about a stranger in {share:.0%} of it")

    def check_end(self) -> None:
        results = self.studio.results
        every = reader.records(results)
        for what in reader.tables(results, every):
            self.wrong(what)
        if not (results / "complete").exists():
            self.wrong("there is no file 'complete'")
        flags = reader.flags(results)
        for path, record in every.items():
            own = flags.get(self.name(path.parent), set())
            for what in reader.stalls(record, self.deeds, own):
                self.wrong(f"{self.name(path)}: {what}", True)
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
        if left and not self.planted:
            self.wrong(f"left in the results: {left}", suspicion=hard)
        if self.plan.machine == "card":
            card = self.studio.card
            if (machine.mode(card), machine.layout(card)) != ((False, False), []):
                self.wrong("the card's MIG state is not as it was found")

    # -- what is done between runs ----------------------------------------------------------------

    def damage(self, name: str) -> None:
        """Remove or cut short what can be made again, or leave what a crash might have."""
        results = self.studio.results
        if name in ("torn_record", "torn_temporary", "empty_attempt"):
            for job in sorted(results.glob("jobs/*/*/*/r*/a*.json")):
                folder = results / "cells" / job.relative_to(results / "jobs").with_suffix("")
                if (folder / "run.json").exists():
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                if name == "torn_record":
                    (folder / "run.json").write_text('{\n "schema_version": 1,\n "study": "dri')
                    self.planted.add(folder / "run.json")
                elif name == "torn_temporary":
                    (folder / ".run.json.4711").write_text('{\n "schema')
                return
        elif name == "no_tables":
            for path in (*results.glob("*.parquet"), *results.glob("*.csv")):
                path.unlink()
        elif name == "torn_tables":
            for path in results.glob("*.parquet"):
                os.truncate(path, path.stat().st_size // 2)
        elif name == "old_locks":
            for path in self.locks.glob("*"):
                path.write_text('{"pid": 1, "study": "somebody')
        else:
            path = {
                "no_plan": results / "plan.json",
                "no_jobs": results / "jobs",
                "no_snakemake": self.folder / ".snakemake",
                "no_figures": results / "figures",
                "no_complete": results / "complete",
            }[name]
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
