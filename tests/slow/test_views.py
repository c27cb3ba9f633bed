"""Copies of a script that write leave the script's folder as it was: in overlays, and in copies."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from collocate.app import main
from tests.studio import REPOSITORY
from workflow.collocation.run import views

WRITES = """
import os, shutil, sys
from pathlib import Path
from models.hook import step
assert not Path("model.pt").exists() and not Path("outputs").exists(), "another copy was here"
Path("model.pt").write_text("weights")
Path("outputs").mkdir()
with open("train.log", "a") as log: log.write("more")
with open("linked.log", "a") as log: log.write("more")
Path("old.pt").unlink()
Path("shared/model.pt").write_text("weights")
Path("new.txt").write_text("where a link led nowhere")
shutil.rmtree("runs")
Path("runs").mkdir()
assert os.listdir("runs") == [] and Path("train.log").read_text() == "startmore"
os.chmod("train.py", 0o700)
for _ in range(50): step()
"""
TRAINS = """
import os, torch, torch.distributed as distributed
distributed.init_process_group("gloo")
print("port", os.environ["MASTER_PORT"], flush=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.save(model.state_dict(), "model.pt")
while True:
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""
# Starts two copies of a command in views, waits until they are warm, and for the end of stdin. By
# then a script that ends after 50 steps was started again.
COPIES = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.fakes.members import script_spec
from workflow.collocation.run.fork_client import ForkServerClient
from workflow.collocation.run.views import keep_apart, plan_view, with_scratch

folder, logs = Path.cwd(), Path(sys.argv[1])
view = plan_view(folder, folder / "collocate", copies=2)
print(view.kind, flush=True)
with with_scratch(view) as view, ForkServerClient(logs / "server.log", "models.script") as server:
    spec = script_spec(folder, sys.argv[2:], warmup_steps=120, restarts=True)
    specs = [replace(spec, index=index, folder=str(logs / str(index))) for index in (0, 1)]
    for spec in keep_apart(specs, view):
        Path(spec.folder).mkdir(exist_ok=True)
        server.start([spec], logs / f"member{spec.index}.log")
    warm = 0
    while warm < 2:
        for event in server.wait(60):
            if event["event"] in ("error", "exited"):
                sys.exit(str(event))
            warm += event["event"] == "warm"
    print("both train", flush=True)
    sys.stdin.read()
"""
MAY_NOT_MOUNT = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'
PYTHON = ["python", "train.py"]
SITUATIONS = {  # what a command is started by, so that the kernel allows this much
    "everything": [],
    "no mounts without a user namespace": ["setpriv", "--bounding-set", "-sys_admin"],
    "no mounts": ["unshare", "-Ur", "sh", "-c", MAY_NOT_MOUNT, "sh"],
}


@pytest.fixture
def project(tmp_path):
    """A user's folder, with links out of it, beside the folders that they lead to."""
    folder = tmp_path / "project"
    for name in ("project/runs/1", "shared", "elsewhere", "scratch", "logs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("train.log", "old.pt", "runs/1/a", "../shared/a", "../elsewhere/run.log"):
        (folder / name).write_text("start")
    (folder / "train.py").write_text(WRITES)
    (folder / "trains.py").write_text(TRAINS)
    (folder / "train.sh").write_text("#!/bin/sh\npython3 train.py\n")
    (folder / "train.sh").chmod(0o755)
    (folder / "shared").symlink_to("../shared")
    (folder / "linked.log").symlink_to(tmp_path / "elsewhere" / "run.log")
    (folder / "new.txt").symlink_to(tmp_path / "elsewhere" / "new.txt")
    return folder


def fingerprint(project: Path) -> dict:
    """Of every file beside logs: its mode, time of change and content, or where it leads."""
    state = {}
    for name in ("project", "shared", "elsewhere"):
        for path in [project.parent / name, *project.parent.joinpath(name).rglob("*")]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
            leads_to = path.readlink() if path.is_symlink() else None
            state[path] = (status.st_mode, status.st_mtime_ns, content, leads_to)
    return state


def start(project: Path, *words: str, situation: str = "everything") -> subprocess.Popen:
    """Start two copies; their stdout says when they train, the end of their stdin ends them."""
    prefix = SITUATIONS[situation]
    if prefix and subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip(f"cannot be arranged here: {situation}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    changes = {"PYTHONPATH": str(REPOSITORY), "PATH": path, "TMPDIR": f"{project}/../scratch"}
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", COPIES, str(project.parent / "logs"), *words],
        cwd=project,
        env=os.environ | changes,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(project: Path) -> list[Path]:
    return [*project.parent.joinpath("scratch").iterdir()]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("command", [PYTHON, ["sh", "train.sh"], ["./train.sh"], "absolute"])
def test_what_copies_write_is_written_nowhere(project, situation, command):
    before = fingerprint(project)
    words = [str(project / "train.sh")] if command == "absolute" else command
    process = start(project, *words, situation=situation)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    kind, *rest = out.splitlines()
    assert rest == ["both train"]
    if situation == "no mounts":
        assert kind == "copy"
    elif subprocess.run([*SITUATIONS[situation], "unshare", "-Urm", "true"]).returncode == 0:
        assert kind == "overlay"
    assert fingerprint(project) == before and left(project) == []


def test_two_copies_of_torchrun_have_ports_of_their_own(project):
    pytest.importorskip("torch")
    before = fingerprint(project)
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "trains.py"]
    process = start(project, "python", *words)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    logs = [path.read_text() for path in project.parent.glob("logs/member*.log")]
    ports = {line for log in logs for line in log.splitlines() if line.startswith("port ")}
    assert len(ports) == 2 and fingerprint(project) == before


def test_views_that_a_killed_process_left_are_removed_at_the_next_start(project):
    before = fingerprint(project)
    process = start(project, *PYTHON)
    assert [process.stdout.readline() for _ in range(2)][1] == "both train\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(left(project)) == 1
    again = start(project, *PYTHON)
    assert [again.stdout.readline() for _ in range(2)][1] == "both train\n"
    assert len(left(project)) == 1
    again.communicate(timeout=300)
    assert left(project) == [] and fingerprint(project) == before


@pytest.mark.parametrize(
    ("links", "covered"),
    [
        ({}, {"."}),
        ({"a": "b", "gone": "b/c"}, {"."}),  # within the folder
        ({"out": "../shared"}, {".", "../shared"}),
        ({"out": "../shared/file"}, {".", "../shared"}),
        ({"out": "../shared/missing"}, {".", "../shared"}),
        ({"out": "../shared", "../shared/on": "../elsewhere"}, {".", "../shared", "../elsewhere"}),
        ({"out": "../shared", "deep": "../shared/deep"}, {".", "../shared"}),
        ({"up": ".."}, {".."}),
        ({"missing": "/nowhere/at/all", "null": "/dev/null"}, {"."}),
        ({"python": "/usr/bin/env", "lib": "/usr/lib"}, {"."}),  # as an environment has them
        ({"out": "/tmp"}, None),
        ({"out": "/"}, None),
    ],
)
def test_folders_that_can_be_written_through_links_are_covered(tmp_path, links, covered):
    folder = tmp_path / "project"
    for name in ("project", "shared/deep", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "shared" / "file").write_text("")
    for name, target in links.items():
        (folder / name).symlink_to(target)
    if covered is None:
        with pytest.raises(ValueError, match=rf"{folder}/out leads to .*, which other processes"):
            views.places_behind(folder)
    else:
        places = views.places_behind(folder)
        assert places == sorted((folder / name).resolve() for name in covered)


@pytest.mark.parametrize("at_terminal", [True, False])
def test_without_a_view_nothing_is_run_unless_a_person_agrees(
    project, monkeypatch, capsys, at_terminal
):
    def refuse(*_, **__):
        raise ValueError("no view is to be had")

    questions = []
    monkeypatch.setattr(views, "plan_view", refuse)
    monkeypatch.setattr(typer, "confirm", lambda question, err: questions.append(question))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: at_terminal))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal, raising=False)
    monkeypatch.chdir(project)
    before = fingerprint(project)
    assert main(["advise", "--results", "../logs", "--set", "gpu=cpu", "--", *PYTHON]) == 1
    said = capsys.readouterr().err.replace("\n ", "")
    assert "no view is to be had; --write-here lets them" in said
    assert len(questions) == at_terminal and fingerprint(project) == before


MOUNTS = """
import subprocess, sys
from pathlib import Path
from workflow.collocation.member.view import remove
theirs, scratch = map(Path, sys.argv[1:])
(scratch / "data").mkdir(parents=True)
subprocess.run(["mount", "--bind", theirs, scratch / "data"], check=True)
remove(scratch)
"""


def test_what_a_script_mounted_in_its_copy_is_not_removed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "dataset").write_text("of somebody")
    scratch = tmp_path / "scratch"
    command = ["unshare", "--mount", "--map-root-user", sys.executable, "-c", MOUNTS]
    run = subprocess.run(
        [*command, theirs, scratch], cwd=REPOSITORY, capture_output=True, text=True
    )
    if run.returncode and ("mount" in run.stderr or "unshare" in run.stderr):
        pytest.skip(f"nothing can be mounted here: {run.stderr}")
    assert run.returncode == 0, run.stderr
    assert (theirs / "dataset").read_text() == "of somebody" and not scratch.exists()
