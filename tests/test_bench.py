"""make bench: the bare loop runs as the members do, and shows it before anything is measured."""

import json
import os
import time
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

torch = pytest.importorskip("torch")

from bench import __main__ as bench  # noqa: E402
from bench import bare_loop  # noqa: E402
from workflow.collocation.cores import Cpu, plan_cores  # noqa: E402
from workflow.collocation.methods.evidence import NotInForce, Report  # noqa: E402
from workflow.collocation.specs import member_specs, plan_shares  # noqa: E402

PAIR = bench.Case(bench.TINY, "faithful", "naive", 2, 2)


@pytest.fixture(scope="module")
def ready(data):
    return bench.prepare(quick(PAIR), data)


def quick(case):
    """The case's cell, measured for a moment only."""
    cell = bench.cell_of(case, 0.2)
    cell.spec["measure"] |= {"warmup_s": 0.0, "settle_s": 0.0}
    for member in cell.spec["members"]:
        member["warmup_steps"] = 3
    return cell


@pytest.fixture
def specs(tmp_path, ready):
    """Member specs of two processes on the CPU, on one core each if there are as many."""
    cell, usable = quick(PAIR), sorted(os.sched_getaffinity(0))
    sets = [[usable[i % len(usable)]] for i in range(cell.n)]
    datasets = {"digits": json.loads(ready.read_text())}
    return member_specs(cell.spec, "cpu", sets, [{}, {}], datasets, tmp_path / "members")


def test_rates_are_samples_over_seconds(specs):
    result = bare_loop.measure(specs, 0.3)
    rates = [each["samples_per_s"] for each in result["processes"]]
    assert len(rates) == 2 and min(rates) > 0 and sum(rates) == result["samples_per_s"]
    for each in result["processes"]:
        assert each["samples_per_s"] == pytest.approx(each["steps"] * 32 / each["seconds"])


def test_at_the_barrier_every_process_is_there_and_says_who_it_is(specs):
    seen = []

    def at_barrier(said):
        pids = [each["pid"] for each in said]
        seen.extend(psutil.pid_exists(pid) for pid in pids)
        assert len(set(pids)) == 2 and os.getpid() not in pids
        assert [bench.report(each) for each in said] == [Report(p, None, None, None) for p in pids]

    bare_loop.measure(specs, 0.1, at_barrier)
    assert seen == [True, True]


def test_what_is_raised_at_the_barrier_ends_the_processes(specs):
    pids = []

    def at_barrier(said):
        pids.extend(each["pid"] for each in said)
        raise NotInForce("nobody is a client")

    with pytest.raises(NotInForce, match="nobody is a client"):
        bare_loop.measure(specs, 60, at_barrier)
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


def test_a_process_that_fails_is_named_and_the_others_end(specs):
    specs[1]["model"] = "no_such_model"
    asked = []
    with pytest.raises(RuntimeError, match=r"bare loop \(PID \d+\) ended with exit code 1"):
        bare_loop.measure(specs, 60, asked.append)
    assert not asked


def test_the_bare_loop_warms_up_as_a_member_does(specs, monkeypatch):
    began, warmed, sent = [], [], []

    def step(number):
        assert number == len(began)
        began.append(time.monotonic())
        time.sleep(0.01 if number else 0.4)
        return torch.zeros(())

    wire = SimpleNamespace(
        send=sent.append, recv=lambda: warmed.append((len(began), time.monotonic()))
    )
    monkeypatch.setattr(bare_loop, "make_step", lambda *_: step)
    monkeypatch.setattr(os, "_exit", lambda _code: None)
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    try:
        for seconds in (0, 0.3):
            began.clear()
            spec = specs[0] | {"warmup_steps": 5, "warmup_s": seconds}
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
    asked = []

    def witness(reports):
        asked.append(reports)
        if error:
            raise error
        return {"verified": True, "server": 7, "clients": [1, 2], "nvml_agrees": True}

    @contextmanager
    def enter(spec, device, log):
        yield SimpleNamespace(environment=lambda member: {}, witness=witness)

    monkeypatch.setattr(bench.methods, "enter", enter)
    monkeypatch.setenv("COLLOCATION_LOCK_DIR", str(tmp_path / "locks"))
    cell = quick(bench.Case(bench.TINY, "faithful", "mps", 2, 2))
    if error:
        with pytest.raises(SystemExit, match="mps/r1: MPS: member 1 is not among the clients"):
            bench.bare(cell, ready, None, tmp_path)
    else:
        rate, seen = bench.bare(cell, ready, None, tmp_path)
        assert rate > 0 and seen == "MPS server 7: 2 clients, NVML agrees"
    [reports] = asked
    assert list(reports) == [0, 1] and all(isinstance(each, Report) for each in reports.values())


def test_cases_have_the_cores_of_their_ladder():
    available = [Cpu(0, i, i) for i in range(16)]
    found = {}
    for name, case in bench.CUDA_CASES.items():
        cell = bench.cell_of(case, 3)
        assert (cell.n, cell.method, cell.arm) == (case.n, case.method, case.arm)
        sets, flags = plan_cores(plan_shares(cell.spec), available)
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


def test_rounds_alternate_and_gains_are_taken_within_a_round(monkeypatch, capsys, tmp_path):
    alone, order = iter([100.0, 200.0, 50.0]), []
    last = {}

    def ours(cell, ready, device, folder):
        order.append(("ours", cell.n))
        last[cell.n] = next(alone) if cell.n == 1 else 1.5 * last[1]
        return fake_record(cell.n, last[cell.n])

    def bare(cell, ready, device, folder):
        order.append(("bare", cell.n))
        return 80.0 * cell.n, "processes on the CPU"

    monkeypatch.setattr(bench, "find_device", lambda config: (None, "no CUDA machine"))
    monkeypatch.setattr(bench, "prepare", lambda cell, data: tmp_path)
    monkeypatch.setattr(bench, "ours", ours)
    monkeypatch.setattr(bench, "bare", bare)
    assert bench.main([]) == 0
    both = [("ours", 1), ("bare", 1), ("ours", 2), ("bare", 2)]
    turned = [("bare", 1), ("ours", 1), ("bare", 2), ("ours", 2)]
    assert order == [*both, *turned, *both]
    printed = capsys.readouterr().out
    assert "naive2: ours: 2 processes on the CPU" in printed
    row = next(line for line in printed.splitlines() if "1.50x" in line)
    assert row.split()[-5:] == ["1.50x", "(1.50-1.50)", "2.00x", "(2.00-2.00)", "1"]
    assert "1.250" in printed.split("median ratio")[1].splitlines()[2]

    alone = iter([100.0])
    bench.main(["--pairs", "1", "--case", "alone"])
    printed = capsys.readouterr().out
    assert "naive2" not in printed and "over that of the job alone" not in printed


def test_cases_are_listed_and_a_wrong_one_is_named(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_device", lambda config: (object(), ""))
    assert bench.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(bench.CUDA_CASES)
    with pytest.raises(SystemExit):
        bench.main(["--case", "mps7", "mps8"])
    assert "--case mps8: choose from alone, mps7," in capsys.readouterr().err
