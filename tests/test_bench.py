"""make bench: the bare loop runs as the members do, and shows it before anything is measured."""

import json
import math
import os
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tests.studio import REPOSITORY

torch = pytest.importorskip("torch")

from bench import __main__ as bench  # noqa: E402
from bench import bare_loop, sampler_cost, survivors  # noqa: E402
from bench.cases import TINY  # noqa: E402
from workflow.collocation.gpu.cores import Cpu, plan_cores  # noqa: E402
from workflow.collocation.run.task import member_specs  # noqa: E402
from workflow.collocation.sharing.evidence import NotInForce, Report  # noqa: E402

PAIR = bench.Case(TINY, "paper_step", "naive", 2, 2)


@pytest.fixture(scope="module")
def ready(data):
    return bench.prepare(quick(PAIR), data)


def quick(case):
    """The case's cell, measured for a moment only."""
    cell = bench.cell_of(case, 0.2)
    spec = cell.spec.with_measure(warmup_s=0.0, settle_s=0.0)
    members = [
        member.model_copy(update={"job": member.job.model_copy(update={"warmup_steps": 3})})
        for member in spec.members
    ]
    return replace(cell, spec=spec.model_copy(update={"members": tuple(members)}))


@pytest.fixture
def specs(tmp_path, ready):
    """Member specs of two processes on the CPU, on one core each if there are as many."""
    cell, usable = quick(PAIR), sorted(os.sched_getaffinity(0))
    sets = [[usable[i % len(usable)]] for i in range(cell.n)]
    datasets = {"digits": json.loads(ready.read_text())}
    return member_specs(cell.spec, "cpu", sets, [{}, {}], datasets, tmp_path / "members")


def test_a_process_that_fails_is_named_and_the_others_end(specs):
    specs[1]["model"] = "no_such_model"
    asked = []
    with pytest.raises(RuntimeError, match=r"bare loop \(PID \d+\) ended with exit code 1"):
        bare_loop.measure(specs, 60, asked.append)
    assert not asked


def test_the_bare_loop_warms_up_as_a_member_does(specs, monkeypatch):
    clock, began, warmed, sent = [0.0], [], [], []

    def step(number):
        assert number == len(began)
        began.append(clock[0])
        clock[0] += 0.01 if number else 0.4
        return torch.zeros(())

    wire = SimpleNamespace(send=sent.append, recv=lambda: warmed.append((len(began), clock[0])))
    monkeypatch.setattr(bare_loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(bare_loop, "make_step", lambda *_: step)
    monkeypatch.setattr(os, "_exit", lambda _code: None)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as process() does, for good
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    try:
        for seconds in (0, 0.3):
            began.clear()
            spec = specs[0] | {"warmup_steps": 5, "warmup_s": seconds}
            clock[0] = 0.0
            bare_loop.process(spec, 0.1, 0.2, wire)
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)
    assert warmed[0][0] == 5 < warmed[1][0]
    assert warmed[1][1] - began[0] >= 0.4 + 0.3
    steps, taken = sent[3]
    settled = len(began) - warmed[1][0] - steps
    assert taken >= 0.1 and began[-steps] - warmed[1][1] >= 0.2 and settled > 0


@pytest.mark.parametrize("error", [None, NotInForce("MPS: member 1 is not among the clients")])
def test_a_bare_run_whose_method_is_not_in_force_ends_the_bench(
    tmp_path, ready, monkeypatch, error
):
    """The method is asked of processes that are all there, and none is left."""
    asked = {}

    def witness(reports):
        asked.update(reports)
        assert all(psutil.pid_exists(each.pid) for each in reports.values())
        if error:
            raise error
        return {"verified": True, "server": 7, "clients": [1, 2], "nvml_agrees": True}

    @contextmanager
    def enter(spec, device, log):
        yield SimpleNamespace(environment=lambda member: {}, witness=witness)

    monkeypatch.setattr("workflow.collocation.sharing.enter", enter)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    cell = quick(bench.Case(TINY, "paper_step", "mps", 2, 2))
    if error:
        with pytest.raises(SystemExit, match="mps/r1: MPS: member 1 is not among the clients"):
            bench.bare(cell, ready, None, tmp_path)
    else:
        rate, seen = bench.bare(cell, ready, None, tmp_path)
        assert rate > 0 and seen == "verified True, server 7, 2 clients, nvml_agrees True"
    pids = {each.pid for each in asked.values()}
    assert list(asked) == [0, 1] and len(pids) == 2 and os.getpid() not in pids
    assert list(asked.values()) == [Report(each.pid, None, None, None) for each in asked.values()]
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_cases_have_the_cores_that_they_say():
    available = [Cpu(0, i, i) for i in range(16)]
    found = {}
    for name, case in bench.CUDA_CASES.items():
        cell = bench.cell_of(case, 3)
        assert (cell.n, cell.method, cell.arm) == (case.n, case.method, case.arm)
        sets, flags = plan_cores(*cell.spec.shares(), available)
        assert not flags
        found[name] = {len(cores) for cores in sets}
    assert found == dict.fromkeys(bench.CUDA_CASES, {1})


def fake_record(n, rate):
    member = {"windows": {"window": {"samples_per_s": rate / n}}, "cores": [0], "input_share": 0.02}
    return {
        "status": "completed",
        "cell": {"method": "naive"},
        "method": {"evidence": {"end": {"verified": True, "device": "cpu", "members": [1] * n}}},
        "members": [member] * n,
        "timing": {"warm_s": 1.0, "window_s": 3.0, "total_s": 9.0},
    }


def test_rounds_alternate_and_ratios_are_of_a_pair(monkeypatch, capsys, tmp_path):
    alone, order = iter([100.0, 200.0, 50.0]), []
    last = {}

    def ours(cell, ready, device, folder):
        order.append(("ours", cell.n))
        last[cell.n] = next(alone) if cell.n == 1 else 1.5 * last[1]
        return fake_record(cell.n, last[cell.n])

    def bare(cell, ready, device, folder):
        order.append(("bare", cell.n))
        return 80.0 * cell.n, "processes on the CPU"

    monkeypatch.setattr(bench, "find_devices", lambda config: ([], "no CUDA machine"))
    monkeypatch.setattr(bench, "prepare", lambda cell, data: tmp_path)
    monkeypatch.setattr(bench, "ours", ours)
    monkeypatch.setattr(bench, "bare", bare)
    assert bench.main([]) == 0
    both = [("ours", 1), ("bare", 1), ("ours", 2), ("bare", 2)]
    turned = [("bare", 1), ("ours", 1), ("bare", 2), ("ours", 2)]
    assert order == [*both, *turned, *both]
    printed = capsys.readouterr().out
    assert "naive2: ours: verified True, device cpu, 2 members" in printed
    assert "1.250" in printed.split("median ratio")[1].splitlines()[2]

    alone = iter([100.0])
    bench.main(["--pairs", "1", "--case", "alone"])
    printed = capsys.readouterr().out
    assert "naive2" not in printed


def test_cases_are_listed_and_a_wrong_one_is_named(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_devices", lambda config: ([object()], ""))
    assert bench.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(bench.CUDA_CASES)
    for arguments, words in [
        (["--case", "mps7", "mps8"], "--case mps8: choose from alone, mps7,"),
        (["sampler", "--blocks", "0"], "--blocks 0: at least 1"),
        (["sampler", "--segment", "0.4"], "--settle 0.4: less than --segment 0.4"),
    ]:
        with pytest.raises(SystemExit):
            bench.main(arguments)
        assert words in capsys.readouterr().err


# -- what monitoring costs -------------------------------------------------------------------------


def test_the_sampler_beside_members_that_train(data, tmp_path, monkeypatch, capsys):
    output = tmp_path / "cost.json"
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    arguments = ["--blocks", "2", "--segment", "0.3", "--settle", "0.05"]
    where = ["--data", str(data), "--output", str(output)]
    assert bench.main(["sampler", *arguments, *where]) == 0
    said = capsys.readouterr().out
    assert "block 2 of 2" in said and "verified True, device cpu, 2 members" in said
    found = json.loads(output.read_text())["workloads"]["tiny"]
    segments = found["segments"]
    assert [segment["monitor"] for segment in segments] == ["off", "ours", "ours", "off"] * 2
    edges = [segment[edge] for segment in segments for edge in ("start_ns", "end_ns")]
    assert edges == sorted(edges)
    for segment in segments:
        assert len(segment["samples_per_s"]) == 2 and min(segment["samples_per_s"]) > 0
        monitored = segment["monitor"] != "off"
        assert (segment["cpu"] is not None) == (segment["readings"] is not None) == monitored
    cost = found["costs"]["ours"]
    assert cost["low"] < cost["loss_percent"] < cost["high"] and cost["pairs"] == 2


def test_blocks_are_palindromes_and_what_drifts_evenly_cancels():
    assert sampler_cost.ORDER[::-1] == sampler_cost.ORDER
    kept, segments = {"off": 1.0, "ours": 0.998}, []
    for block in range(2):
        for name in sampler_cost.ORDER:
            rate = 100 * kept[name] * math.exp(-0.01 * len(segments))
            watched = {} if name == "off" else {"cpu": 0.02, "readings": 10}
            segment = sampler_cost.Segment(block, name, 0, 10**9, **watched)
            segment.samples_per_s = [0.4 * rate, 0.6 * rate]
            segments.append(segment)
    ours = sampler_cost.cost(segments)
    assert [ours[key] for key in ("loss_percent", "high")] == pytest.approx([0.2, 0.2])
    assert (ours["within"], ours["pairs"], ours["cpu"]) == (True, 2, 0.02)
    alone = sampler_cost.cost([s for s in segments if s.block == 0])
    assert alone["within"] is None and alone["high"] is None


@pytest.mark.parametrize("step_ms", [3, 120])
@pytest.mark.parametrize("start_ms", [500, 559, 617])
def test_where_in_a_step_a_segment_begins_does_not_matter(step_ms, start_ms):
    ends, start = np.arange(1, 2000) * step_ms * 10**6, start_ms * 10**6
    rate = sampler_cost.member_rate(ends, start, start + 11 * 10**8, 32)
    assert rate == pytest.approx(32 / step_ms * 1e3)
    with pytest.raises(sampler_cost.BenchError, match="no step in a segment"):
        sampler_cost.member_rate(ends, ends[-1] + 1, ends[-1] + 2, 32)


def test_a_job_left_alone_is_slower_by_its_host_and_not_by_the_gpu():
    """As measured in the study that ships: speeds differ by tenths, those of a busy GPU do not."""
    found = list(survivors.survivors(REPOSITORY / "results" / "h200"))
    rates, busy = ([one[place] for one in found] for place in (1, 2))
    assert len(found) == 13 and min(rates) < 0.9
    assert busy == pytest.approx([1] * 13, abs=0.04)
