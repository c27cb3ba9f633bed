"""python -m bench: the bare loop under the same method, on the same cores; what watching costs."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pytest

from tests.fakes import machine
from workflow.collocation import ROOT

torch = pytest.importorskip("torch")

from bench import __main__ as bench  # noqa: E402
from bench import cells, profiler, sampling, watching  # noqa: E402


@pytest.fixture(autouse=True)
def no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(bench, "find_devices", lambda config: ([], "none here"))


def test_both_are_measured_in_turns(data, capsys):
    arguments = ["--case", "naive1", "--pairs", "1", "--seconds", "0.3"]
    assert bench.main([*arguments, "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert "1x_tiny_resnet_digits_b32/paper_step/naive/r1 on CPU" in said
    assert "median ratio of pairs" in said and "beside its warm-up and window" in said


def test_the_sampler_beside_members_that_train(data, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(watching, "SEGMENT_S", 0.3)
    monkeypatch.setattr(watching, "SETTLE_S", 0.05)
    told = ["--case", "naive1", "--blocks", "2", "--output", str(tmp_path / "found.json")]
    assert bench.main(["watching", *told, "--data", str(data)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    [about] = json.loads((tmp_path / "found.json").read_text()).values()
    found = about["watchers"]
    assert about["gpu"] == "CPU" and about["versions"]["torch"]
    value, low, high = found["ours"]["throughput"]
    assert (
        low < value < high
        and found["ours"]["blocks"] == len(found["ours"]["ratios"]["throughput"]) == 2
        and f"ours: throughput {value:+.3f}" in said
    )


def test_a_watcher_is_started_for_half_of_the_segments_and_one_that_ends_counts_nothing(
    data, tmp_path, monkeypatch
):
    """Somebody's command; the cell has no sampler of its own."""
    monkeypatch.setattr(watching, "SEGMENT_S", 0.4)
    monkeypatch.setattr(watching, "SETTLE_S", 0.1)
    cell = cells.cell_of(bench.CPU_CASES["naive1"], 2)
    ready = cells.prepare(cell, data)
    log = tmp_path / "log"
    code = "import os, sys, time\nprint(os.getpid(), file=open(sys.argv[1], 'a'))\ntime.sleep(99)"
    found = watching.measure_watcher(cell, ready, None, [sys.executable, "-c", code, log])
    assert len(found["throughput"]) == 3
    started = [int(pid) for pid in log.read_text().split()]
    assert len(set(started)) == len(started) > 1
    assert not any(psutil.pid_exists(pid) for pid in started)
    assert watching.measure_watcher(cell, ready, None, ["true"]) is None


def test_the_profiler_sees_half_of_the_segments(monkeypatch):
    """A job that is three times as fast when nobody looks, and of equal power."""
    now = [0.0]

    def steps(n):
        now[0] += n * (0.03 if torch.autograd._profiler_enabled() else 0.01)

    monkeypatch.setattr(profiler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rates, powers = profiler.ratios(steps, lambda: 300 * now[0], 2)
    assert rates == pytest.approx([1 / 3] * 2) and powers == pytest.approx([1] * 2)


@pytest.mark.parametrize("step_ms", [3, 120])
def test_blocks_are_palindromes_and_what_drifts_evenly_cancels(step_ms):
    """Steps that get slower without an end, and 0.2 % slower where the sampler runs."""
    ends, segments, at = [0], [], 0
    for number in range(4 * len(watching.ORDER)):
        state, start = watching.ORDER[number % len(watching.ORDER)], at
        at += 12 * 10**9
        while ends[-1] < at:
            slower = (1 + 1e-13 * ends[-1]) / (0.998 if state == "on" else 1)
            ends.append(ends[-1] + int(step_ms * 10**6 * slower))
        joules = 300 if state == "on" else 298
        segments.append(watching.Segment(state, start + 10**9, at, joules))
    table = pa.table({"member": np.zeros(len(ends), int), "tick": np.array(ends) // 1000})
    table = table.append_column("loss", pa.nulls(len(ends), pa.float32()))
    table = table.replace_schema_metadata({"tick_ns": "1000", "origin_ns": "0"})
    window = {"start_ns": 0, "end_ns": segments[-1][2] - 1}  # the last block is cut
    rates, powers = watching.block_ratios(segments, {"windows": [window]}, table)
    assert rates == pytest.approx([0.998] * 3, abs=1e-4)
    assert powers == pytest.approx([300 / 298] * 3)
    assert watching.percent_change(rates)[0] == pytest.approx(-0.2, abs=0.01)


def test_the_samplers_of_two_checkouts_in_turns(tmp_path, monkeypatch, capsys):
    for name, value in machine.create(tmp_path / "machine").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    short = ["--seconds", "1", "--rounds", "1", "--readings", "3", "--members", "2"]
    with machine.installed(tmp_path / "machine"):
        assert sampling.main([str(ROOT), str(ROOT), *short]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 members on NVIDIA H200")
    assert "nvmlDeviceGetUtilizationRates: 3 calls" in printed
