"""Abuse, drawn by a seed: `python tests/abuse.py --seed 1 --mutations 300 --kills 60`.

A mutated config or study is planned, or answered by one clear line. After a kill nothing runs or
is locked, no measured cell is lost or measured again, and the same command completes. Else: exit 1.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import studio, warm  # noqa: E402

MEMORY, PATIENCE, GONE_WITHIN = 3 << 30, 240, 60  # bytes; seconds, on a busy machine
ALIASES = ", ".join(f"&{a} [{f'*{b}, ' * 20}]" for a, b in zip("bcdefg", "abcdef", strict=True))
# What stands in place of a value, as YAML.
VALUES = r"""~ | true | no | -1 | 0 | 1.5 | 1000000000 | 1_0e9 | .nan | -.inf | 1e999 | '' | x | é
{} | [1, [2]] | {a: {b: c}} | 0o9 | 2026-99-99 | !!python/name:os.system x | !x y | [] | {1: 2} | @
!!binary é | !!set {a, b} | !!set [1] | !!omap [1] | !!int x | !!timestamp x | !!bool x | !!merge x
*nowhere | &a [*a] | &a {b: *a} | {<<: &a {<<: 1}} | {? [1] : 2} | {? {a: b} : 2} | {a: 1, a: 2}
{=: 1} | "\0" | "\e[2J" | "\uD800" | "a\nb" | - x | ../../x | /dev/zero | {true: [naive]} | '{}'"""
VALUES = VALUES.replace("\n", " | ").split(" | ")
VALUES += ["9" * 5000, "0x" + "f" * 5000, "a" * 10_000, "[" * 900 + "]" * 900, "[" * 9000]
VALUES += [f"[&a [x, x], {ALIASES}]", f"[{'x, ' * 20_000}]", str(dict.fromkeys(range(9000), 1))]
LOG = "cells/*/*/*/*/*/log/conductor.log"
# Phase → the file and the word in it that show that it has begun, and about how long it takes.
PHASES = {"planning": ("", "", 4), "starting": ("jobs/*/*/*/*/*", "", 3)}
PHASES |= {"warm": (LOG, "built:", 1), "window": (LOG, "started:", 1)}
PHASES |= {"writing": ("cells/*/*/*/*/*/*.parquet", "", 0.3), "merging": ("log/merge.log", "", 4)}
PHASES |= {"drawing": ("log/draw.log", "", 20), "sealing": ("", "", 12)}


def mutate(path: Path, draw: random.Random) -> None:
    """Change a value, the text or the kind of a file of YAML."""
    how, text, value = draw.random(), path.read_text("utf-8"), draw.choice(VALUES)
    content, at = text.encode(), draw.randrange(len(text))
    if how < 0.6:
        tree = inner = yaml.safe_load(text)
        while isinstance(inner, dict | list) and inner and (inner is tree or draw.random() < 0.8):
            keys, node = inner if isinstance(inner, dict) else range(len(inner)), inner
            inner = node[key := draw.choice([*keys])]
        old, new = node.pop(key), draw.choice(("key", "value", "value", "value", "none"))
        if isinstance(node, list):
            node.insert(key, "MUTATED")
        elif new != "none":
            node |= {"MUTATED": old} if new == "key" else {key: "MUTATED"}
        path.write_bytes(yaml.safe_dump(tree).replace("MUTATED", value).encode())
    elif how < 0.9:
        junk = (draw.randbytes(20), b"\xe9", b"\t", b"\n---\n", value.encode(), content)
        whole = (value.encode(), text.encode("utf-16"), b"#" * 9_000_000, content[:at], b"")
        path.write_bytes(draw.choice((content[:at] + draw.choice(junk) + content[at:], *whole)))
    else:
        path.unlink()
        make = (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"))
        draw.choice((*make, lambda: path.symlink_to(path), lambda: None))()


def mutation(draw: random.Random, real: bool) -> tuple[str, list[str]]:
    """What was mutated, and what is wrong with the answer, if anything is."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("config", "workflow", "analysis", "models", "paper")[: 5 if real else 1]:
            shutil.copytree(studio.REPOSITORY / name, tree / name)
        study = draw.choice(sorted(path.stem for path in tree.glob("config/studies/*")))
        given, files = {"study": study, "gpu": "cpu"}, [f"studies/{study}.yaml", "workloads.yaml"]
        if what := draw.choice([*files * 2, "config.yaml" if real else "", ""]):
            mutate(tree / "config" / what, draw)
        else:
            what = draw.choice(("study", "gpu", "results", "data", "wait", "timeout", "telemetry"))
            given[what] = draw.choice(VALUES)
        pairs = [f"{key}={value}" for key, value in given.items()]
        if real:
            shutil.copy(studio.REPOSITORY / "Snakefile", tree)
            limits = ["timeout", str(PATIENCE), "prlimit", f"--as={MEMORY}", sys.executable]
            words = ["-m", "snakemake", "-nc1", "--workflow-profile", "none", "--config", *pairs]
            done = subprocess.run([*limits, *words], cwd=tree, capture_output=True, text=True)
        else:
            pairs = ["workloads=config/workloads.yaml", "studies=config/studies", *pairs]
            words = (word for pair in pairs for word in ("--set", pair))
            done = warm.run("collocate", "plan", *words, cwd=tree, timeout=PATIENCE, data=MEMORY)
    lines = (done.stdout + done.stderr).splitlines()
    clear = len(lines) == 1 and lines[0].isprintable() and len(lines[0]) < 4000
    right = done.returncode == 0 or (done.returncode in (1, 2) and clear)
    return f"{what}: exit {done.returncode}", [] if right else ["\n".join(lines)[-600:]]


def attack(made: studio.Studio, phase: str, draw: random.Random | None) -> tuple[str, list[str]]:
    """Kill the command in that phase, or let it complete; how, and what was wrong after it."""
    (pattern, word, seconds), since, how = PHASES[phase], time.time(), "completes"
    running = made.start() if phase != "sealing" else made.run("collocate", "seal", made.results)
    while draw and pattern and running.process.poll() is None:
        time.sleep(0.02)
        pattern = "" if made.says(pattern, word, since) else pattern
    time.sleep(draw.uniform(0, seconds)) if draw else running.end()
    before = made.records()
    if running.process.poll() is None:
        how = draw.choice(("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))
        running.kill(how)
    left, ended, after = made.left(GONE_WITHIN), running.end(), made.records()
    bad = "Traceback" in ended.output or (how == "completes" and ended.code)
    wrong = [ended.output[-600:]] if bad else []
    wrong += [f"lost or changed: {name}" for name in before if after.get(name) != before[name]]
    wrong += [f"measured again: {name}" for name in after if not name.endswith("/a1")]
    return f"{phase}: {how}", wrong + left


def main(seed: int, mutations: int, kills: int) -> int:
    """Do as many of both, print the tally and what was wrong, and give the exit code."""
    tally, failures = Counter(), []

    def note(name: str, how: str, wrong: list[str]) -> None:
        tally[how] += 1
        failures.extend(f"{name}: {how}: {fault}" for fault in wrong)
        print(name, how, *wrong, flush=True)

    for name in (f"{seed}/{number}" for number in range(mutations)):
        note(f"mutation {name}", *mutation(random.Random(name), name.endswith("0")))
    with tempfile.TemporaryDirectory() as folder:
        plan, data = studio.study(ladders=studio.alone("plain"), replicates=3), Path(folder, "data")
        for number in range(kills):
            name, phase = f"kill {seed}/{number}", [*PHASES][number % len(PHASES)]
            place = Path(folder, str(number // len(PHASES)))
            made = studio.Studio(place, data, place / "locks", cold=True, by_make=True)
            made.write({"plain": studio.workload(step_s=0.02)}, **{studio.STUDY: plan})
            if phase == "sealing":
                note(f"before {name}", *attack(made, "planning", None))
            note(name, *attack(made, phase, random.Random(name)))
            if phase == "sealing" or number == kills - 1:
                note(f"after {name}", *attack(made, phase, None))
    print(*sorted(tally.items()), *failures, f"{len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # by nohup, or a shell
        signal.signal(ignored, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__)
    for key, default in {"seed": 1, "mutations": 300, "kills": 60}.items():
        parser.add_argument(f"--{key}", type=int, default=default)
    sys.exit(main(**vars(parser.parse_args())))
