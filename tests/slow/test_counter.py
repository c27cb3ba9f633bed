"""Steps counted by a script's optimizer, and a script as a tree of processes; by the real Command.

Scripts write their own clock beside: what is counted has to be what they did.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("torch")

from models import hook  # noqa: E402
from models.jobs.command import ScriptMember  # noqa: E402
from tests.fakes.members import script_spec  # noqa: E402
from tests.studio import REPOSITORY  # noqa: E402
from workflow.collocation.member.protocol import Channel  # noqa: E402

TRAIN = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
steps = 0
while True:
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    open({truth!r}, "w").write(str(steps))
"""
ACCUMULATES = (
    TRAIN.replace("    optimizer.step()", "    if turn(): optimizer.step()")
    .replace(
        "steps = 0",
        "steps = micro = 0\ndef turn():\n    global micro; micro += 1; return micro % 4 == 0",
    )
    .replace("    steps += 1", "    steps = micro // 4")
)
GAN = TRAIN.replace(
    "    optimizer.step()",
    "    optimizer.step()\n    for _ in range(2): other.step()",
).replace("steps = 0", "steps = 0\nother = torch.optim.Adam(model.parameters(), lr=1e-4)")
PHASES = TRAIN.replace("{optimizer}", "SGD").replace(
    "    optimizer.step()",
    "    if steps == 30: optimizer, first = torch.optim.Adam(model.parameters()), optimizer\n"
    "    optimizer.step()",
)
FORKS = """
import os, subprocess, sys
if sys.argv[1:]:
    exec(open({inner!r}).read())
sys.exit(subprocess.call([sys.executable, __file__, "child"]))
"""
TWO_LINES = """
import time
from models.hook import step
n = 0
while True:
    time.sleep(0.001); n += 1
    open({truth!r}, "w").write(str(n))
    step()
"""
BOTH = TRAIN.replace(
    "import sys, torch", "import sys, torch\nfrom models.hook import step"
).replace("    steps += 1", "    optimizer.step()\n    step()\n    steps += 1")
SHELL = "cd {folder} && {python} inner.py; exit $?"


def run(tmp_path, words, seconds=1.0, warmup=5, **more) -> tuple[list[dict], dict]:
    """The events of a member that runs this command for so long, and its steps.npz."""
    spec = script_spec(tmp_path, words, loss_interval_steps=10, warmup_steps=warmup, **more)
    (heard, told), (commands, say) = os.pipe(), os.pipe()
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    if (pid := os.fork()) == 0:
        try:
            os.environ["PYTHONPATH"] = str(REPOSITORY)
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(log, stream)
            channel = Channel(0, told, commands)
            try:
                ScriptMember(spec, channel).run()
            except RuntimeError as error:
                channel.failed(error)
        finally:
            os._exit(0)
    os.close(told)
    events = []
    with os.fdopen(heard) as lines:
        for line in lines:
            events.append(json.loads(line))
            if events[-1]["event"] == "warm":
                os.write(say, b"go\n")
            if events[-1]["event"] == "started":
                time.sleep(seconds)
                os.write(say, b"stop\n")
    os.waitpid(pid, 0)
    steps = tmp_path / "steps.npz"
    return events, dict(np.load(steps)) if steps.exists() else {}


def named(events: list[dict], name: str) -> dict:
    return next(event for event in events if event["event"] == name)


FOLDS = """
import torch
optimizers, steps = [], 0
while True:
    model = torch.nn.Linear(8, 1)
    optimizers.append(torch.optim.{optimizer}(model.parameters(), lr=0.01))
    for _ in range({steps_of_fold}):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizers[-1].step()
        steps += 1
        open({truth!r}, "w").write(str(steps))
"""
CRITIC = TRAIN.replace(
    "    optimizer.zero_grad()",
    "    if steps % 5 == 0: generator.step()\n    optimizer.zero_grad()",
).replace("steps = 0", "steps = 0\ngenerator = torch.optim.SGD(model.parameters(), lr=1e-4)")
CASES = {
    "sgd": (TRAIN, "SGD"),
    "gradient accumulation": (ACCUMULATES, "SGD"),
    "two optimizers": (GAN, "SGD"),
    "two phases": (PHASES, "Adam"),
    "folds of 60": (FOLDS.replace("{steps_of_fold}", "60"), "SGD"),
    "folds of 15": (FOLDS.replace("{steps_of_fold}", "15"), "SGD"),
    "a generator, then its critic": (CRITIC, "Adam"),
    "the hook, no torch": (TWO_LINES, None),
    "the hook knows better": (BOTH, "SGD"),
}


WRAPPED = [("sgd", "python"), ("the hook, no torch", "shell")]


@pytest.mark.parametrize(("case", "wrapped"), [*((case, "") for case in CASES), *WRAPPED])
def test_steps_are_counted_as_the_script_made_them(case, wrapped, tmp_path):
    source, optimizer = CASES[case]
    truth = tmp_path / "truth"
    filled = source.replace("{optimizer}", optimizer or "").replace("{truth!r}", repr(str(truth)))
    (tmp_path / "inner.py").write_text(filled)
    words = ["python", "inner.py"]
    if wrapped == "python":
        (tmp_path / "outer.py").write_text(FORKS.format(inner=str(tmp_path / "inner.py")))
        words = ["python", "outer.py"]
    if wrapped == "shell":
        words = ["sh", "-c", SHELL.format(folder=tmp_path, python=sys.executable)]
    events, _ = run(tmp_path, words)
    counted = named(events, "warm")["steps"] + named(events, "stopped")["steps"]
    # It goes on for a moment until it is stopped; before the hook's first, two were its optimizer's
    # steps; it may be open whether the newest fold counts; a critic counts after some time.
    least, most = {BOTH: (-5, 3), CRITIC: (-45, 1)}.get(source, (-5, 1))
    least -= 20 * ("folds" in case)
    assert least <= counted - int(truth.read_text()) <= most
    assert named(events, "stopped")["optimizer"] == optimizer


RUN = """
import os, sys, time
from models.hook import step
for number in range({steps}):
    time.sleep(0.002)
    open("truth", "a").write(".")
    {counted}
    print("step", number, flush=True)
"""
HOOKED, PRINTED = RUN.replace("{counted}", "step()"), RUN.replace("{counted}", "")
LEAVES = HOOKED + "if os.fork() == 0: time.sleep(600)\n"  # with the memory of its steps
# Asked to hold as soon as it has made its only step, which is too late.
ENDS_HELD = HOOKED.replace("{steps}", "1") + "time.sleep(0.3)\n"
ENDLESS_RUNS = {
    "hooked": (HOOKED.replace("{steps}", "30"), {}),
    "leaves a process": (LEAVES.replace("{steps}", "30"), {}),
    "one step": (ENDS_HELD, {"warmup": 1}),
    "printed": (
        PRINTED.replace("{steps}", "10").replace("0.002", "0.01"),
        {"steps": r"step (?P<step>\d+)"},
    ),
}


@pytest.mark.parametrize("case", ENDLESS_RUNS)
def test_a_script_that_ends_is_started_again(case, tmp_path):
    """Its steps go on from those of the run before, and it can be held between two runs."""
    code, more = ENDLESS_RUNS[case]
    (tmp_path / "inner.py").write_text(code)
    events, steps = run(tmp_path, ["python", "inner.py"], 3.0, restarts=True, **more)
    warm, stopped = named(events, "warm"), named(events, "stopped")
    starts_ns, counted = stopped["starts_ns"], warm["steps"] + stopped["steps"]
    if case == "one step":
        assert warm["steps"] == 2 and warm["pause_s"] >= 0.3
    # Of a pattern the first number of each run is no step, and the script trains on until it has
    # been stopped; the hook makes it wait in its next step.
    uncounted, least = (len(starts_ns), -10) if case == "printed" else (0, -3)
    assert least <= counted + uncounted - len((tmp_path / "truth").read_text()) <= 1
    assert len(starts_ns) > 2 and np.all(np.diff(starts_ns) > 0)
    assert len(steps["end_ns"]) == stopped["steps"] > 0 and np.all(np.diff(steps["end_ns"]) >= 0)


@pytest.mark.parametrize(
    ("code", "restarts", "reason"),
    [
        ("step()", False, "ended after 1 steps"),
        ("if not os.path.exists('ran'): open('ran', 'w'); step()", True, "ended after 1 steps"),
        ("pass", True, "ended after 0 steps"),
        ("step(); sys.exit(3)", True, "with exit code 3"),
    ],
)
def test_a_script_is_not_started_again_for_nothing(code, restarts, reason, tmp_path):
    words = ["python", "-c", f"import os, sys\nfrom models.hook import step\n{code}"]
    events, _ = run(tmp_path, words, warmup=20, restarts=restarts)
    assert reason in named(events, "error")["message"]


NONE = {
    "no torch": (
        ["python", "-c", "import time; print('hello', flush=True); time.sleep(60)"],
        "not loaded torch",
    ),
    "no optimizer": (
        ["python", "-c", "import torch, time; time.sleep(60)"],
        "no optimizer of torch",
    ),
    "isolated": (["python", "-I", "-c", "import time; time.sleep(60)"], "python -S, -I or -E"),
    "no site": (["python", "-S", "-c", "import time; time.sleep(60)"], "python -S, -I or -E"),
    "no Python": (["sleep", "60"], "no Python at all"),
    "stops": (
        [
            "python",
            "-c",
            "import torch, time; p = torch.ones(1, requires_grad=True); "
            "o = torch.optim.SGD([p]); [o.step() for _ in range(7)]; time.sleep(60)",
        ],
        "after 7 steps no optimizer",
    ),
}


SECONDS = {"no optimizer": 15, "stops": 20}  # torch is imported in them


# They work on, but not at steps that are counted: (what they import, seconds that a step may take,
# seconds that it is waited for: from, to, and the reason).
WORKS = "\nwhile True: pass"
NOT_IMPORTED = "import importlib.util; importlib.util.find_spec('lightgbm')"
LATE, EARLY = (0.5, 5, 65), (7, 7, 67)
UNCOUNTED = {
    "nothing known": ("", *LATE, "has not loaded torch"),
    "a library": ("import lightgbm", *EARLY, "it has loaded lightgbm"),
    "one that is only looked for": (NOT_IMPORTED, *LATE, "has not loaded torch"),
    "for its metrics": ("import torch.optim.optimizer, lightgbm", *LATE, "torch is loaded"),
    "beside torch": ("import torch.optim.optimizer, spacy", *EARLY, "it has loaded spacy"),
}


@pytest.mark.parametrize("case", UNCOUNTED)
def test_a_script_that_works_uncounted_is_refused_late_or_by_name(case, tmp_path):
    imports, step_timeout_s, least_s, most_s, reason = UNCOUNTED[case]
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    for name in ("lightgbm.py", "spacy.py", "torch/optim/optimizer.py"):
        (tmp_path / name).touch()
    words = ["python", "-c", imports + WORKS]
    events, _ = run(tmp_path, words, step_timeout_s=step_timeout_s)
    message = named(events, "error")["message"]
    waited_s = float(re.search(r"no step for (\d+) s: ", message)[1])
    assert reason in message and least_s <= waited_s < most_s


# Files with the part of a library that its training calls, and that call.
KERAS = "from keras.src import backend\nclass BaseOptimizer:\n    def apply(self, grads): pass"
LIBRARIES = {
    "fastai": (
        {"fastai/optimizer.py": "class Optimizer:\n    def step(self): pass"},
        "from fastai.optimizer import Optimizer\nstep = Optimizer().step",
    ),
    "keras": (
        {
            "keras/src/backend.py": "def backend(): return 'torch'",
            "keras/src/optimizers/base_optimizer.py": KERAS,
        },
        "from keras.src.optimizers.base_optimizer import BaseOptimizer\n"
        "optimizer = BaseOptimizer()\nstep = lambda: optimizer.apply([])",
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_optimizers_of_other_libraries_are_counted(library, tmp_path):
    files, script = LIBRARIES[library]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "inner.py").write_text(
        f"{script}\nimport time\nwhile True:\n    time.sleep(0.002)\n"
        "    open('truth', 'a').write('.')\n    step()\n"
    )
    events, _ = run(tmp_path, ["python", "inner.py"])
    counted = named(events, "warm")["steps"] + named(events, "stopped")["steps"]
    assert -3 <= counted - len((tmp_path / "truth").read_text()) <= 1


SLOW = {  # what a script may do for 3 s before its first step, if one is to come in 1 s
    "works": "end = time.monotonic() + 3\nwhile time.monotonic() < end: pass",
    "a child works": "subprocess.run([sys.executable, '-I', '-c', 'import time\\n'"
    "'while time.process_time() < 1: pass'])",
    "a compiler waits": "subprocess.run(['./ninja', '3'])",
}


@pytest.mark.parametrize("case", SLOW)
def test_a_slow_first_step_is_waited_for_while_processes_work(case, tmp_path):
    shutil.copy("/bin/sleep", tmp_path / "ninja")
    code = f"import subprocess, sys, time\nfrom models.hook import step\n{SLOW[case]}\n"
    words = ["python", "-c", code + "while True: step(); time.sleep(0.01)"]
    events, _ = run(tmp_path, words, seconds=0.2, step_timeout_s=1)
    assert named(events, "stopped")["steps"] > 0


@pytest.mark.parametrize("case", NONE)
def test_no_step_is_said_with_the_reason(case, tmp_path):
    words, said = NONE[case]
    events, _ = run(tmp_path, words, step_timeout_s=SECONDS.get(case, 1), warmup=20)
    message = named(events, "error")["message"]
    assert said in message and "models.hook.step" in message
    assert ("hello" in message) is (case == "no torch")


def test_what_a_script_leaves_behind_ends_with_it(tmp_path):
    """A daemon by a double fork, in a session of its own, with the script's descriptors."""
    code = (
        "import os, time, torch\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('daemon', 'w').write(str(os.getpid())); time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "p = torch.ones(1, requires_grad=True); o = torch.optim.SGD([p])\n"
        "while True: o.step()\n"
    )
    run(tmp_path, ["python", "-c", code], seconds=0.2)
    pid = int((tmp_path / "daemon").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def environment(path, **more) -> dict:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | more


def test_the_scripts_own_sitecustomize_runs(tmp_path):
    """Also where nothing is counted; and Python draws the same random numbers."""
    counter = REPOSITORY / "models" / "counter"
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = 'ran'")
    code = (
        "import sys, random; print(sys.own, random.getstate()[0], 'sitecustomize' in sys.modules)"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env=environment(path), capture_output=True, text=True
        )
        for path in ([counter, tmp_path], [tmp_path])
    ]
    assert found[0].stdout == found[1].stdout == "ran 3 True\n" and not found[0].stderr


def test_weights_are_those_of_the_script_alone(tmp_path):
    """The counter changes no number: the same loss after as many steps."""
    loss = "print(float(sum(p.sum() for p in model.parameters())), flush=True)"
    code = TRAIN.replace("{optimizer}", "AdamW").replace("while True:", "for _ in range(50):")
    (tmp_path / "inner.py").write_text(code.replace("{truth!r}", "'/dev/null'") + loss + "\n")
    command = [sys.executable, "inner.py"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    memory, (gate, _) = os.memfd_create("steps"), os.pipe()
    os.truncate(memory, hook.SIZE)
    os.pwrite(memory, (1 << 62).to_bytes(8, sys.byteorder), 8 * hook.LIMIT)
    os.pwrite(memory, (10).to_bytes(8, sys.byteorder), 8 * hook.EVERY)
    counted = environment(
        [REPOSITORY / "models" / "counter"], **{hook.VARIABLE: f"{os.getpid()} {memory} {gate}"}
    )
    other = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env=counted
    )
    assert int.from_bytes(os.pread(memory, 8, 0), sys.byteorder) == 50
    assert re.fullmatch(r"-?[\d.]+\n", plain.stdout) and other.stdout == plain.stdout
