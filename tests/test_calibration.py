"""`make bench BENCH=smact` at its boundary: loads that are no kernels."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from analysis.web.belief import calibration as told
from bench import calibration

DEVICE = SimpleNamespace(
    uuid="GPU-1", name="NVIDIA H200", sm_count=132, record=lambda: {"name": "NVIDIA H200"}
)
OBEYS = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    print(time.monotonic_ns(), flush=True)
    time.sleep(float(line) * SHARE)
    print(time.monotonic_ns(), flush=True)
"""


@pytest.fixture
def process(monkeypatch):
    """Starts what stands in for a load; `share` of the time it was told it works."""
    started = []

    def start(share: str) -> calibration.Load:
        code = OBEYS.replace("SHARE", share)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        started.append(subprocess.Popen([sys.executable, "-c", code], **pipes))
        return calibration.Load(started[-1])

    monkeypatch.setattr(calibration, "LEAD_S", 0.05)
    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_a_load_runs_while_it_is_looked_at(process):
    both = process("1"), process("1")
    with calibration.running(0.1, *both):
        pass


def test_a_load_that_ends_too_early_or_says_something_else_is_no_reading(process):
    with pytest.raises(calibration.LoadError, match="too early"):
        with calibration.running(0.0, process("0")):
            calibration.time.sleep(0.3)
    broken = process("1")
    broken.process.stdin.write(b"no number\n")
    broken.line()
    with pytest.raises(calibration.LoadError, match="ended with exit code 1"):
        broken.line()


def test_what_is_written_is_what_the_belief_page_shows(monkeypatch, tmp_path, capsys):
    closed = []
    source = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(calibration, "find_device", lambda config: (DEVICE, ""))
    monkeypatch.setattr(calibration, "open_source", lambda *asked: (source, []))
    monkeypatch.setattr(
        calibration, "spinning", lambda source, device, busy: {"smact": busy / 132 + 0.001}
    )
    output = tmp_path / "bench" / "smact.json"
    assert calibration.main(["--output", str(output)]) == 0
    shown = told(json.loads(output.read_text()))
    assert [row["busy"] for row in shown] == [f"{n} of 132" for n in (16, 33, 66, 132)]
    assert shown[2]["true"] == "0.5000" and shown[2]["read"] == "0.5010"
    assert closed and "132 busy: 1.0000" in capsys.readouterr().out


def test_without_a_card_it_says_so(monkeypatch):
    monkeypatch.setattr(calibration, "find_device", lambda config: (None, "no CUDA machine"))
    with pytest.raises(SystemExit, match="no GPU whose SMs are known: no CUDA machine"):
        calibration.main([])
