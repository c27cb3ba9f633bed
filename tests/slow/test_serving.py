"""Jobs that answer what comes: a language model that serves, and one that is retrained whenever
new data come. Their latencies, what a study may ask, and cells of both on the CPU.
"""

import json
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.members import plain_spec
from tests.studio import REPOSITORY, study
from workflow.collocation.member.spec import ServingSpec
from workflow.collocation.record import latency, step_times
from workflow.collocation.record.values import PERCENTILES, REQUEST_METRICS, Window
from workflow.collocation.run import waiting
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.grid import expand
from workflow.collocation.study.load import load_study, load_workloads

CATALOGUE = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
SERVE, LEARN = "tiny_serve", "tiny_lm_sources_b4"
STEADY, TRIGGERED = "tiny_resnet_digits_b32", "tiny_resnet_digits_triggered"
TINY = {name: CATALOGUE[name] for name in (SERVE, LEARN, STEADY, TRIGGERED)}
SERVED_MIX, RETRAINED_MIX = f"1x_{LEARN}+1x_{SERVE}", f"1x_{STEADY}+1x_{TRIGGERED}"
K = TINY[TRIGGERED]["triggers"]["steps"]
DELAYS = {f"p{p}_e2el_ms" for p in PERCENTILES} | {"answered_share"}
# More requests than it can answer, one at a time.
SWAMPED = {"swamped": TINY["tiny_serve"] | {"requests_per_s": 2000, "slots": 1}}
SECOND = {"second": TINY["tiny_serve"] | {"engine": "transformers"}}
HAS_SECOND = bool(find_spec("transformers"))
needs_second = pytest.mark.skipif(not HAS_SECOND, reason="no transformers")


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiles", [False, True])
def test_a_step_from_the_cache_gives_what_the_whole_text_gives(compiles):
    """Beside others' requests, and in a slot that had another before."""
    torch = pytest.importorskip("torch")
    from models.decoder import Cache, Decoder
    from models.jobs.base import compiled

    torch.manual_seed(0)
    model, prompt = Decoder(64, 32, 1, 4, 64).eval(), torch.randint(0, 64, (1, 7))
    with torch.inference_mode():
        text = prompt
        for _ in range(6):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
        cache = Cache(model, slots=3, length=16)
        step = compiled(cache.step) if compiles else cache.step
        for slot in (0, 2, 2):
            cache.prefill(torch.randint(0, 64, (1, 7)), torch.tensor([slot]))
            step()
        cache.prefill(prompt, torch.tensor([2]))
        answer = [int(cache.tokens[2])]
        for _ in range(5):
            step()
            answer.append(int(cache.tokens[2]))
    assert answer == text[0, 7:].tolist()
    assert cache.lengths.tolist() == [7 + 3 + 5, 0, 7 + 5]  # nobody was in the second


@needs_second
def test_what_fails_in_the_thread_of_the_second_engine_ends_the_job():
    torch = pytest.importorskip("torch")
    from models.jobs.continuous import TransformersEngine
    from models.jobs.serve import GenerationRequest
    from models.member import is_out_of_memory

    def fail(**_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    keys = ("model_args", "requests_per_s", "prompt_tokens", "output_tokens", "slots")
    serving = ServingSpec(engine="transformers", **{key: TINY[SERVE][key] for key in keys})
    spec = plain_spec("", kind="serve", job=serving)
    engine = TransformersEngine(spec, 256, max_tokens=12, device=torch.device("cpu"))
    engine.prepare()
    engine.model.forward = fail
    engine.add(GenerationRequest(0, 2))
    with pytest.raises(RuntimeError) as failed:
        while True:
            engine.advance()
    assert is_out_of_memory(failed.value)
    assert [request.tokens for request in engine.end()] == [2]


# -- latencies -------------------------------------------------------------------------------------


def requests(*rows: tuple[int, list[int]]) -> dict[str, np.ndarray]:
    """(arrival, times of its tokens, how many are still wanted) of each, in ms."""
    return {
        "at_ns": np.array([at for at, *_ in rows], np.int64) * 10**6,
        "wanted": np.array([len(times) + sum(more) for _, times, *more in rows], np.int64),
        "tokens": np.array([len(times) for _, times, *_ in rows], np.int64),
        "token_ns": np.array([t for _, times, *_ in rows for t in times], np.int64) * 10**6,
    }


WINDOW = Window(name="w", start_ns=0, end_ns=10**8, seconds=0.1)
SLO = {"ttft": 26, "tpot": 10}  # ms


def test_latencies_are_of_requests_that_were_to_arrive_in_the_window():
    before, after = (-50, [1, 2, 3]), (101, [102, 103])
    rows = [(0, [10, 12, 14]), (5, [30, 40, 60]), (90, [95, 99, 120])] * 2  # the last ends after
    found = latency.window_latencies(requests(before, *rows, after), WINDOW, SLO)
    assert found == {
        "p50_ttft_ms": 10,  # of 10, 25, 5
        "p50_tpot_ms": 12.5,  # of 2, 15, 12.5
        "p50_e2el_ms": 30,  # of 14, 55, 30
        "p50_itl_ms": pytest.approx(np.median([1, 1, *[2, 2, 10, 20, 4] * 2])),  # of all tokens
        "request_goodput": 2 / 0.1,  # the others' TPOT is above the objective
        "answered_share": 1,
    }
    nobody = Window(name="w", start_ns=1, end_ns=2, seconds=0)
    assert latency.window_latencies(requests(*rows), nobody, SLO) == {}


def test_who_is_not_answered_waited_longer_than_any():
    """Some have their first token, and none their last; some have none."""
    rows = [(at, [at + 10, at + 20]) for at in range(60)]
    rows += [(60 + at, [100], 1) for at in range(20)] + [(80 + at, [], 2) for at in range(20)]
    found = latency.window_latencies(requests(*rows), WINDOW, SLO)
    assert found["answered_share"] == 0.6 and found["request_goodput"] == 600
    assert found["p50_ttft_ms"] == 10 and found["p50_e2el_ms"] == 20
    assert found["p95_tpot_ms"] == 10  # which a queue does not show in
    assert not {"p95_ttft_ms", "p95_e2el_ms"} & found.keys()
    none = latency.window_latencies(requests((1, [], 3)), WINDOW, SLO)
    assert none == {"request_goodput": 0, "answered_share": 0}


@pytest.mark.parametrize(
    ("count", "told"), [(3, []), (4, [50]), (39, [50]), (40, [50, 95]), (200, [50, 95, 99])]
)
def test_a_percentile_needs_requests_beyond_it(count, told):
    found = latency.window_latencies(requests(*[(1, [2, 3])] * count), WINDOW, SLO)
    names = {f"p{p}_{kind}_ms" for p in told for kind in ("ttft", "tpot", "itl", "e2el")}
    assert found.keys() == names | {"request_goodput", "answered_share"}


def test_delays_are_from_trigger_to_trained():
    """Of five triggers one was trained for after the window, and the last not at all."""
    at, trained = np.array([0, 10, 12, 90, 95]), np.array([8, 25, 40, 120])
    told = {"at_ns": at * 10**6, "tokens": np.array([1, 1, 1, 1, 0])}
    told |= {"token_ns": trained * 10**6}
    found = latency.window_latencies(
        told, Window(name="w", start_ns=0, end_ns=10**8, seconds=0.1), None
    )
    assert found.keys() == DELAYS and found["p50_e2el_ms"] == 15 and found["answered_share"] == 0.6
    assert found["p95_e2el_ms"] == np.percentile([8, 15, 28], 95)


many = st.lists(
    st.tuples(st.integers(0, 99), st.lists(st.integers(1, 50)), st.integers(0, 3)), min_size=1
)


@given(many, many)
def test_requests_are_read_as_they_were_written(tmp_path_factory, one, other):
    path = tmp_path_factory.getbasetemp() / latency.REQUESTS_FILE
    told = {}
    for member, rows in ((1, one), (4, other)):
        rows = [(at, np.cumsum([at, *gaps])[1:].tolist(), more) for at, gaps, more in rows]
        told[member] = requests(*rows)
    latency.write_requests(path, told)
    found = latency.read_requests(pq.read_table(path))
    assert found.keys() == told.keys()
    for member, arrays in told.items():
        for name, values in arrays.items():
            np.testing.assert_array_equal(found[member][name], values)


# -- what the catalogue and a study may say --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        (SERVE, {"model_args": {"dim": 30, "layers": 1, "heads": 4, "hidden": 8}}, "no multiple"),
        (SERVE, {"model_args": {"dim": 32, "layers": 1, "heads": 4}}, "model_args.hidden"),
        (SERVE, {"requests_per_s": 0}, "requests_per_s"),
        (SERVE, {"dataset": "sources"}, "dataset"),
        (SERVE, {"engine": "vllm"}, "engine"),
        (SERVE, {"slo_ms": {"ttft": 500}}, "slo_ms.tpot"),
        (TRIGGERED, {"triggers": {"per_s": 0, "steps": 5}}, "triggers.per_s"),
        (TRIGGERED, {"triggers": {"per_s": 1}}, "triggers.steps"),
        ("own", {"triggers": {"per_s": 1, "steps": 5}}, "triggers: unknown key"),
    ],
)
def test_a_job_that_cannot_be_is_refused(tmp_path, name, changes, why):
    script = {"kind": "command", "run": ["python", "a.py"], "batch_size": 1}
    path = tmp_path / "workloads.yaml"
    path.write_text(yaml.safe_dump({"job": TINY.get(name, script) | changes}))
    with pytest.raises(ConfigError, match=why):
        load_workloads(path)


@pytest.mark.parametrize("both", [(SERVE, LEARN), (TRIGGERED, STEADY)])
@pytest.mark.parametrize(
    ("methods", "more"),
    [
        (["naive"], {"measure": {"kind": "completion"}, "work": True}),
        (["alone", "naive"], {"measure": {"kind": "interleaved"}}),
        (["streams"], {}),
    ],
)
def test_what_comes_waits_for_nobody(studio, both, methods, more):
    mix = {"members": dict.fromkeys(both, 1), "methods": methods} | more
    mix |= {"work": dict.fromkeys(both, 9)} if "work" in more else {}
    studio.write(TINY, drill=study(mixes=[mix]))
    run = studio.plan()
    assert run.code and run.output.count(f"'{both[0]}'") == 1, run.output


def test_an_engine_that_is_a_package_is_not_captured(studio):
    mix = {"members": {"second": 1, LEARN: 1}, "methods": ["naive"], "implementations": ["compile"]}
    studio.write(TINY | SECOND, drill=study(mixes=[mix]))
    run = studio.plan()
    assert run.code and run.output.count("'second'") == 1, run.output


def test_jobs_whose_package_is_missing_are_refused_before_anything_runs(monkeypatch):
    catalogue = load_workloads(REPOSITORY / "config" / "workloads.yaml")
    asked = load_study(REPOSITORY / "config" / "studies", "serve", catalogue)
    monkeypatch.setattr(waiting, "find_spec", lambda name: None)
    needs = {"serve_6_transformers": "transformers", "lm_b8_lora": "peft"}
    for cell in expand(asked, catalogue):
        wanted = [needs[m.workload] for m in cell.spec.members if m.workload in needs]
        reason = waiting.refusal(cell.spec, None) or ""
        assert wanted == [each for each in needs.values() if f"pip install {each}" in reason]


# -- cells, of real training on the CPU ------------------------------------------------------------


@pytest.fixture(scope="module")
def served(module_studio):
    """A server beside fine-tuning, a job that is retrained beside a steady one, and each alone; a
    server that cannot keep up.
    """
    pytest.importorskip("torch")
    studio = module_studio()
    studio.settings = {"trainer": "models.train"}
    measure = {"kind": "window", "window_s": 2, "min_steps": 5, "warmup_s": 0.2, "settle_s": 0.2}
    pairs = [(SERVE, LEARN), (TRIGGERED, STEADY)] + [("second", LEARN)] * HAS_SECOND
    mixes = [{"members": dict.fromkeys(pair, 1), "methods": ["naive"]} for pair in pairs]
    ladders = [{"workloads": ["swamped"], "counts": {1: ["naive"]}, "replicates": 2}]
    drill = study(mixes=mixes, ladders=ladders, measure=measure, cores_for=2)
    studio.write(TINY | SWAMPED | SECOND, drill=drill)
    run = studio.snakemake()
    assert run.code == 0, run.output
    return studio


@pytest.mark.parametrize("name", [SERVE, pytest.param("second", marks=needs_second)])
def test_a_server_answers_what_arrives_beside_a_model_that_learns(served, name):
    mix = "+".join(f"1x_{job}" for job in sorted((name, LEARN)))
    record = served.record(f"{mix}/paper_step/naive/r1/a1")
    assert record["status"] == "completed"
    server, trained = sorted(record["members"], key=lambda member: member["workload"] != name)
    assert server["parameters"] == trained["parameters"]
    found = server["windows"]["window"]
    assert (
        found["latency"].keys() < set(REQUEST_METRICS)
        and not trained["windows"]["window"]["latency"]
    )
    assert found["latency"]["answered_share"] > 0.9  # those that arrive at the end, too
    assert 0 < found["latency"]["p50_ttft_ms"] <= found["latency"]["p50_e2el_ms"]
    assert found["latency"]["p50_tpot_ms"] < found["latency"]["p50_e2el_ms"]
    assert 10 < found["samples_per_s"] < 35  # 20 arrive
    losses = trained["loss"]["value"]
    assert losses[0] == pytest.approx(np.log(256), rel=0.1) and losses[-1] < losses[0]


def test_who_waits_at_the_end_is_told_of(served):
    """Arrivals are drawn anew in each replicate, and all are written."""
    arrivals = []
    for replicate in (1, 2):
        cell = f"1x_swamped/paper_step/naive/r{replicate}/a1"
        record = served.record(cell)
        [window] = record["windows"]
        found = record["members"][0]["windows"]["window"]["latency"]
        assert found["answered_share"] < 0.9 and "p99_e2el_ms" not in found
        assert found.get("p99_itl_ms", 1) > 0  # of those that were answered, if any
        path = served.results / "cells" / cell / latency.REQUESTS_FILE
        at = latency.read_requests(pq.ParquetFile(path).read())[0]["at_ns"]
        inside = np.sum((at >= window["start_ns"]) & (at < window["end_ns"]))
        assert inside == pytest.approx(2000 * window["seconds"], rel=0.1)
        arrivals.append(np.diff(at[:20]))
    assert not np.allclose(*arrivals, rtol=1e-3)


def test_each_trigger_has_its_steps_and_its_delay_beside_a_job_that_trains_on(served):
    cell = f"{RETRAINED_MIX}/paper_step/naive/r1/a1"
    path, record = served.folder / served.path(cell), served.record(cell)
    steady, triggered = sorted(record["members"], key=lambda m: m["workload"] == TRIGGERED)
    alone = served.record(f"1x_{TRIGGERED}/paper_step/naive/r1/a1")
    assert record["status"] == "completed" and "stalled" not in alone["flags"]  # it rests
    found = triggered["windows"]["window"]
    assert found["latency"].keys() == DELAYS and not steady["windows"]["window"]["latency"]
    assert found["drift"] is None  # its gaps are those of its triggers
    ends = step_times.read_steps(pq.read_table(path.with_name(step_times.STEPS_FILE)))[
        triggered["member"]
    ][0]
    requests = latency.read_requests(pq.read_table(path.with_name(latency.REQUESTS_FILE)))[
        triggered["member"]
    ]
    trained, n = requests["token_ns"], requests["tokens"].sum()
    asked = requests["at_ns"][:n]  # others came while it trained for the last, or was stopped
    first, last = ends[: n * K : K], ends[K - 1 : n * K : K]
    assert np.abs(trained - last).max() <= step_times.TICK_NS
    assert (first + step_times.TICK_NS > asked).all()
    assert (trained - asked > last - first - step_times.TICK_NS).all()
    assert (np.diff(requests["at_ns"]) > 0).all()


def test_latencies_and_what_others_lose_are_published_drawn_and_checked(served):
    value = pd.read_csv(served.results / "estimates.csv").set_index("id")["value"]
    mix, alone = f"{SERVED_MIX}/paper_step/naive/{SERVE}", "paper_step/naive"
    assert value[f"p50_tpot_ms:{mix}"] > 0 and value[f"answered_share:{mix}"] > 0.9
    assert value[f"p50_tpot_ms:1x_{SERVE}/{alone}"] > 0
    mix = f"{RETRAINED_MIX}/paper_step/naive"
    delays = [value[f"p{p}_e2el_ms:{mix}/{TRIGGERED}"] for p in (50, 95)]
    assert 0 < delays[0] <= delays[1] and value[f"p95_e2el_ms:1x_{TRIGGERED}/{alone}"] > 0
    assert value[f"slowdown:{mix}/{STEADY}"] > 0
    for mix in (SERVED_MIX, RETRAINED_MIX):
        folder = (served.folder / served.path(f"{mix}/paper_step/naive/r1/a1")).parent
        assert served.wrong(folder) == []
        record = json.loads((folder / "run.json").read_text())
        latencies = record["members"][1]["windows"]["window"]["latency"]
        latencies["p50_ttft_ms" if mix == SERVED_MIX else "p50_e2el_ms"] *= 1.01
        (folder / "run.json").write_text(json.dumps(record))
        [said] = served.wrong(folder)
        assert "latencies" in said
