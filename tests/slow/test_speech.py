"""Speech recognition: what its batches hold, that it learns, cells of it."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from tests.fakes.members import member_spec
from tests.studio import REPOSITORY, study
from workflow.collocation.member.spec import OptimizerSpec
from workflow.collocation.study.errors import ConfigError
from workflow.collocation.study.load import load_workloads

torch = pytest.importorskip("torch")

from models.data import open_dataset, prepare  # noqa: E402
from models.data.speech import FRAMES_PER_S, LETTERS, MELS  # noqa: E402
from models.inputs import SPEECH_BUCKETS  # noqa: E402
from models.jobs.asr import AsrJob, Conformer  # noqa: E402

CATALOGUE = yaml.safe_load((REPOSITORY / "config" / "workloads.yaml").read_text())
NAME = "tiny_asr_b16"
TINY = {NAME: CATALOGUE[NAME]}
CPU = torch.device("cpu")
SPEC = member_spec(
    "", seed=3, optimizer=OptimizerSpec(lr=5e-3), model_args=CATALOGUE[NAME]["model_args"]
)


@pytest.fixture(autouse=True)
def one_thread():
    """More wait for each other where others work too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    made = prepare("speech", tmp_path_factory.mktemp("data"), train=1200)
    return open_dataset("speech", made["path"])


def source_of(speech, batch_size: int, samples: int = 10**6):
    return AsrJob.resident(speech.resident(0, samples), replace(SPEC, batch_size=batch_size), CPU)


# -- what a batch holds ----------------------------------------------------------------------------


def test_a_batch_is_of_one_bucket_and_has_its_seconds_of_audio(speech):
    assert 1200 <= speech.train_size < 1216 and speech.classes == LETTERS + 1
    source, shapes, audio = source_of(speech, 60), set(), []
    for step in range(200):
        frames, there, letters, lengths, counts = source.batch(step)
        assert there.sum(1).equal(lengths) and (letters > 0).sum(1).equal(counts)
        assert frames.shape == (*there.shape, MELS) and not frames[~there].any()
        assert lengths.min() >= 2 * FRAMES_PER_S and lengths.max() <= 16 * FRAMES_PER_S
        assert (counts < lengths / 4).all()  # or CTC could not say them
        shapes.add(tuple(there.shape))
        if step < SPEECH_BUCKETS:  # the first are one of each, the longest first
            assert len(shapes) == step + 1 and there.shape[1] == min(t for _, t in shapes)
        else:
            audio.append(int(lengths.sum()) / FRAMES_PER_S)
    assert len(shapes) == SPEECH_BUCKETS
    assert np.mean(audio) == pytest.approx(60, rel=0.05) and np.ptp(audio) < 30


def test_a_pass_takes_no_utterance_twice_and_the_order_is_the_seeds(speech):
    one, same = source_of(speech, 60), source_of(speech, 60)
    rows = [one.row(step)[1].tolist() for step in range(len(one.plan))]
    assert rows == [same.row(step)[1].tolist() for step in range(len(one.plan))]
    steps = (len(rows) - SPEECH_BUCKETS) // 16
    passes = [rows[at : at + steps] for at in (SPEECH_BUCKETS, SPEECH_BUCKETS + steps)]
    for each in passes:
        taken = sum(each, [])
        assert len(taken) == len(set(taken)) > 0.7 * len(one.lengths)
    assert passes[0] != passes[1]


def test_audio_that_makes_no_batch_is_one_line(speech):
    with pytest.raises(ValueError, match="s of speech are less than a batch of 60 s"):
        source_of(speech, 60, samples=40)


# -- the model -------------------------------------------------------------------------------------


def test_padding_is_attended_to_by_nobody():
    """A convolution sees a few frames of it, and what stands further away does not change."""
    torch.manual_seed(0)
    model = Conformer(16, 1, 2, 32).eval()
    frames, there = torch.randn(1, 400, MELS), torch.arange(400)[None] < 200
    with torch.inference_mode():
        logits = model(frames, there)
        frames[:, 240:] = 7
        changed = model(frames, there)
    assert torch.allclose(logits[:, :30], changed[:, :30], atol=1e-5)
    assert not torch.allclose(logits[:, 70:], changed[:, 70:], atol=1e-2)


def test_the_model_of_the_catalogue_has_its_size():
    with torch.device("meta"):
        model = Conformer(**CATALOGUE["asr_b240"]["model_args"])
    assert 28e6 < sum(p.numel() for p in model.parameters()) < 31e6


def test_it_learns_what_was_said(speech):
    source, job = source_of(speech, 8, samples=400), AsrJob(SPEC, CPU)
    losses = [float(job.step(source.batch(step))) for step in range(100)]
    assert losses[0] > np.log(LETTERS) and np.mean(losses[-5:]) < 0.6 * np.log(LETTERS)


# -- what a catalogue and a study may say, and cells -----------------------------------------------


def test_no_graph_holds_steps_that_differ(studio):
    counts = {"workloads": [NAME], "counts": {1: ["naive"]}, "implementations": ["graph"]}
    studio.write(TINY, drill=study(ladders=[counts]))
    run = studio.plan()
    assert run.code and "utterances differ in length" in run.output


@pytest.mark.parametrize(("key", "value"), [("input_size", 80), ("dataset", "sources")])
def test_a_recogniser_that_cannot_be_is_refused(tmp_path, key, value):
    path = tmp_path / "workloads.yaml"
    path.write_text(yaml.safe_dump({"asr": TINY[NAME] | {key: value}}))
    with pytest.raises(ConfigError, match=key):
        load_workloads(path)


def test_two_take_turns_with_one(studio):
    studio.settings = {"trainer": "models.train"}
    measure = {"kind": "interleaved", "slices": 4, "slice_s": 0.5, "drop_s": 0.1, "warmup_s": 0}
    ladders = [{"workloads": [NAME], "counts": {2: ["alone", "naive"]}}]
    sizes = {"speech": {"train": 200}}
    studio.write(TINY, drill=study(ladders=ladders, measure=measure, datasets=sizes, cores_for=2))
    run = studio.measure()
    assert run.code == 0, run.output
    record = studio.record(f"2x_{NAME}--interleaved/paper_step/alone-naive/r1/a1")
    assert record["status"] == "completed"
    assert [(each["dataset"], each["source"]) for each in record["data"]] == [
        ("speech", "synthetic")
    ]
    for each in record["members"]:
        assert all(window["samples_per_s"] > 0 for window in each["windows"].values())
