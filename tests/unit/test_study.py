"""Config files: what is right loads; a mistake is one line with file, key and what is allowed."""

import copy
import os
from pathlib import Path

import pytest
import yaml

from workflow.collocation.study import load as settings
from workflow.collocation.study.definition import CONFIG, Study, parse_seconds
from workflow.collocation.study.load import ConfigError, load_config, load_study, load_workloads
from workflow.collocation.study.methods import METHOD_BOUNDS

STUDIES = CONFIG / "studies"
WORKLOADS = load_workloads(CONFIG / "workloads.yaml")
SMALL, LARGE, DLRM = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "dlrm_criteo_b2048"
STUDY = {
    "description": "a test",
    "ladders": [{"workloads": [SMALL], "counts": {1: ["naive"], 2: ["naive"]}}],
    "mixes": [{"members": {SMALL: 1, LARGE: 1}, "methods": ["naive"]}],
}
WORKLOAD = {"model": "resnet26", "dataset": "cifar10", "batch_size": 32, "input_size": 32}
COMMAND = {"kind": "command", "run": ["python", "train.py", "--epochs", 100], "batch_size": 8}
COMMAND["environment"] = {"CUDA_LAUNCH_BLOCKING": 1, "WANDB_API_KEY": None}
SCRIPT = {"description": "x", "ladders": [{"workloads": ["mine"], "counts": {1: ["naive", "mps"]}}]}


@pytest.fixture
def load(tmp_path):
    """Loads a study, or a catalogue, from its content: a text, or what YAML would give."""

    def study(content, workloads=WORKLOADS) -> Study:
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (tmp_path / "mine.yaml").write_text(text)
        return load_study(tmp_path, "mine", workloads)

    def catalogue(content):
        (tmp_path / "workloads.yaml").write_text(yaml.safe_dump(content))
        return load_workloads(tmp_path / "workloads.yaml")

    study.catalogue = catalogue
    return study


def change(content: dict, path: str, value) -> dict:
    """A copy of `content` with `value` at a dotted path; numbers are places in a list."""
    changed = copy.deepcopy(content)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    node = changed
    for part in parents:
        node = node[part]
    node[last] = value
    return changed


def refused(call, *words: str) -> None:
    """`call` raises ConfigError, one line that holds all of `words`."""
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable() and len(message) < 4000
    assert [word for word in words if word.strip() not in message] == [], message


def rows(table: str) -> list[str]:
    """Lines of a table of mistakes: what stands instead (YAML), and words of the sentence."""
    for name, workload in (("SMALL", SMALL), ("LARGE", LARGE), ("DLRM", DLRM)):
        table = table.replace(name, workload)
    return table.replace("\\\n", "").strip().splitlines()


# -- what is shipped ------------------------------------------------------------------------------


def test_the_papers_hyperparameters_are_the_defaults():
    workload = WORKLOADS[SMALL]
    sgd = {"name": "sgd", "base_lr": 0.1, "base_batch": 256, "momentum": 0.9, "nesterov": True}
    decay = {"weight_decay": 2e-5, "schedule": "cosine", "schedule_epochs": 300}
    assert workload.optimizer.model_dump() == sgd | decay
    assert (workload.label_smoothing, workload.classes) == (0.1, 1000)


# -- mistakes in a study --------------------------------------------------------------------------

STUDY_MISTAKES = r"""
replicats: 3 | replicats: unknown key | did you mean 'replicates'?
replicates: 0 | replicates: | equal to 1, got 0
replicates: 1000000000 | replicates: | less than or equal to 999, got 1000000000
ladders.0: {workloads: [SMALL], counts: {48: [naive, mps]}, replicates: 400} | \
    ladders.0: its cells bring the study over 20,000 jobs
implementations: [fast] | implementations.0: | 'paper_step', 'eager' | got 'fast'
datasets: {cifar: {}} | datasets.cifar: | 'cifar10', 'digits' | got 'cifar' | (and 1 more)
cores_for_workload: {resnet: 2} | cores_for_workload: unknown workload 'resnet' | SMALL
measure: {kind: completion} | ladders.0: a completion is measured of 'mixes' only
measure: {kind: departure} | ladders.0.counts.1: a departure needs at least 2 members
ladders.0.measure: {windw_s: 3} | ladders.0.measure: windw_s: unknown key | mean 'window_s'?
ladders.0.workloads: [resnet26_cifar10_b23] | \
    ladders.0: unknown workload 'resnet26_cifar10_b23' | did you mean 'SMALL'
ladders.0.counts: {1: [mp]} | ladders.0.counts.1.0: 'mp' is not allowed | did you mean 'mps'? | \
    METHODS
ladders.0.counts: {0: [naive]} | counts.0 | equal to 1, got 0
ladders.0.counts: {8: [naive, mig]} | ladders.0.counts.8: 'mig' takes 1 to 7 members, not 8
ladders.0.counts: {5: [mig_1g2x]} | ladders.0.counts.5: 'mig_1g2x' takes 1 to 4 members, not 5
ladders.0: {workloads: [SMALL], counts: {2: [naive]}, implementations: [graph], input: files} | \
    ladders.0.implementations: 'graph' captures the step of 'SMALL' | loader processes
mixes.0.members: {nothing_like_it: 1} | mixes.0: unknown workload 'nothing_like_it' | SMALL, 
mixes.0.members: {SMALL: 48, LARGE: 1} | mixes.0.methods: 'naive' takes 1 to 48 members, not 49
mixes.0.methods: [naive, mig] | mixes.0: MIG needs a slice for | SMALL | LARGE | 'slices'
mixes.0.slices: {SMALL: 1g, LARGE: half} | mixes.0.slices.LARGE: | got 'half'
mixes.0.leaving_workload: DLRM | mixes.0: | 'DLRM' is not among | SMALL
mixes.0.leaving_workload: SMALL | \
    mixes.0.leaving_workload: allowed with measure {kind: departure} only
mixes.0: {members: {SMALL: 1, LARGE: 1}, methods: [mig_4g], slices: {SMALL: 4g, LARGE: 4g}} | \
    mixes.0.methods: 'mig_4g' takes 1 to 1 members, not 2
mixes.0: {members: {SMALL: 1, DLRM: 1}, methods: [naive], measure: {kind: completion}, \
    work: {SMALL: 3}} | mixes.0.work: give the steps of 'DLRM'
mixes.0.work: {SMALL: 3} | mixes.0.work: allowed with measure {kind: completion} only
variants: {mps_equal: {sm_percent: 10}} | variants.mps_equal: is a method already
variants: {naive_slow: {sm_percent: 10}} | variants.naive_slow | should match pattern '^mps_
variants: {mps_all: {sm_percent: 101}} | variants.mps_all.sm_percent: 101 is not allowed | equal
variants: {mps_first: {priority: {SMALL: 0, LARGE: 2}}} | variants.mps_first.priority: | or 1
"""


@pytest.mark.parametrize("mistake", rows(STUDY_MISTAKES))
def test_mistakes_in_a_study(load, mistake):
    instead, *words = mistake.split(" | ")
    [(path, value)] = yaml.safe_load(instead).items()
    words = [*words[:-1], *METHOD_BOUNDS] if "METHODS" in words[-1] else words
    refused(lambda: load(change(STUDY, path, value)), "mine.yaml: ", *words)


def test_the_study_that_the_mistakes_are_made_in_is_right(load):
    assert load(STUDY).replicates == 3
    assert load(change(STUDY, "implementations", ["graph"])).implementations == ["graph"]
    refused(lambda: load({"description": "x"}), "mine.yaml: ", "'ladders' or 'mixes'")


def test_a_study_or_a_file_that_is_not_there(tmp_path):
    refused(lambda: settings.read_yaml(tmp_path / "no.yaml"), "no.yaml: cannot be read: No such")
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("fifo.yaml", "zero.yaml", "."):
        refused(lambda name=name: settings.read_yaml(tmp_path / name), "Not a regular file")
    words = "archive, asr, kick, ladder, ", "; did you mean 'paper'?"
    refused(lambda: load_study(STUDIES, "papr", WORKLOADS), "study: 'papr' is not in", *words)


# Little text that becomes much memory once something asks for all that it says.
LAUGHS = "a: [&a [x], " + ", ".join(
    f"&{name} [{', '.join([f'*{inner}'] * 10)}]"
    for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
LAUGHS += "]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description: a\nseed: 1\nseed: 2\n", ["line 3", "the key 'seed' stands there twice"]),
        ("ladders:\n  - {counts: {1: [naive]}, counts: {}}\n", ["line 2", "key 'counts'"]),
        ("ladders: [1,\nmixes: 2\n", ["line 3", "not valid YAML: ", "expected ','"]),
        ("description: !!python/name:os.system\n", ["line 1", "not valid YAML: "]),
        ("a: \0", ["not valid YAML: "]),
        ("a: 1\nb: !!timestamp x\n", ["line 2", "'x' is no timestamp"]),
        ("a: 2026-99-99\n", ["line 1", "'2026-99-99' is no timestamp"]),
        (f"seed: 0x{'f' * 5000}\n", ["line 1", "is no int"]),
        ('a: "\\ud800"\n', ["line 1", "is no str"]),
        ("a: !!set [1]\n", ["line 1", "not valid YAML: "]),
        ("a: &b [*b]\n", ["line 1", "one that holds itself"]),
        (LAUGHS, ["line 1", "more than 100,000 values"]),
        ("#" * 250_001, ["cannot be read: ", "more than 250,000 bytes"]),
        ("description: x\n? " + "a" * 9000 + "\n: 1\n", ["unknown key", " ... ", "allowed: "]),
        ("a: " + "[" * 20_000, [""]),
        ("", ["has no keys; allowed: description"]),
        ("description: x\nmeasure: fast\n", ["measure: has no keys; allowed: kind, window_s"]),
        ("description: x\nladders: 3\n", ["ladders: allowed: a list", "got 3"]),
    ],
)
def test_broken_yaml(load, text, words):
    refused(lambda: load(text), "mine.yaml:", *words)


def test_merged_keys_may_be_overridden(load):
    text = yaml.safe_dump({"description": "x"}) + (
        "mixes:\n"
        f"  - &a {{members: {{{SMALL}: 2}}, methods: [naive]}}\n"
        f"  - {{<<: *a, members: {{{SMALL}: 3}}}}\n"
    )
    assert [mix.members[SMALL] for mix in load(text).mixes] == [2, 3]


WORDS = "040, 1:10, 1:30:00, 3.10, 1_0.5, 0x10, on, 1e3, null, 2026-11-26"


def test_words_of_a_script_are_as_they_are_written(load, tmp_path):
    """Also of one that takes them over from another."""
    (tmp_path / "words.yaml").write_text(
        f"first: &a {{kind: command, batch_size: 10, run: [x, {WORDS}], "
        "environment: {SIZE: 0100, FLAG: on, TOKEN: null}}\nsecond: {<<: *a, unit: tokens}\n"
    )
    for job in load_workloads(tmp_path / "words.yaml").values():
        assert job.run == ["x", *WORDS.split(", ")] and job.batch_size == 10
        assert job.environment == {"SIZE": "0100", "FLAG": "on", "TOKEN": None}


# -- mistakes in the catalogue --------------------------------------------------------------------


COMMAND_MISTAKES = r"""
run: python train.py | mine.run: | a list
run: [] | mine.run: | at least 1 item
steps: 'loss (' | mine.steps: give auto or a regular expression
steps: hook | mine.steps: give auto, or a pattern
steps: 'loss' | mine.steps: give auto, or a pattern | one group (?P<step> | this has none
steps: '(?P<step>1)/(?P<of>1)' | mine.steps: | may have one (?P<total> | of
first_step_s: 0 | mine.first_step_s: | greater than 0
unit: images | mine.unit: | 'samples', 'tokens' | got 'images'
model: resnet26 | mine: model: unknown key; allowed: | run, folder, steps
environment: {A B: 1} | mine.environment.A B: | pattern
environment: {CUDA_VISIBLE_DEVICES: 1} | VISIBLE_DEVICES is the study's to set
environment: {OMP_NUM_THREADS: 1} | OMP_NUM_THREADS is the study's to set
environment: {MALLOC_CONF: null} | MALLOC_CONF changes | give its value
environment: {A: [1]} | mine.environment.A:
"""
MODEL_MISTAKES = r"""
modle: resnet26 | mine: modle: unknown key | did you mean 'model'?
model: resnet 26 | mine.model: | pattern | got 'resnet 26'
dataset: criteo | mine.dataset: | 'imagenet64' or 'imagenet', got 'criteo'
kind: visoin | mine.kind: 'visoin' is not allowed | dlrm | mean 'vision'?
kind: dlrm | mine: input_size: unknown key; allowed: | batch_size
"""


@pytest.mark.parametrize(
    ("right", "mistake"),
    [(COMMAND, row) for row in rows(COMMAND_MISTAKES)]
    + [(WORKLOAD, row) for row in rows(MODEL_MISTAKES)],
)
def test_mistakes_in_the_catalogue(load, right, mistake):
    assert load.catalogue({"mine": right})["mine"].batch_size in (8, 32)
    instead, *words = mistake.split(" | ")
    changed = {"mine": right | yaml.safe_load(instead)}
    refused(lambda: load.catalogue(changed), "workloads.yaml: mine", *words)


def test_catalogues_that_are_none(load):
    for content, said in (
        ([1], "must map workload names"),
        ({"mine": 5}, "mine: has no keys; allowed: "),
        ({"a/b": WORKLOAD}, "'a/b': allowed in a workload's name: a-z, 0-9, _"),
        ({"mine": {"model": "a", "batch_size": 1}}, "mine.dataset: Field required"),
    ):
        refused(lambda content=content: load.catalogue(content), f"workloads.yaml: {said}")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("input", "files", "input: the command 'mine' reads its own"),
        ("implementations", ["graph"], "implementations: 'graph' captures the step of 'mine'"),
        ("counts", {2: ["streams"]}, "streams: 'mine' (command)"),
    ],
)
def test_what_a_study_cannot_ask_of_a_command(load, path, value, said):
    workloads = load.catalogue({"mine": COMMAND})
    assert load(SCRIPT, workloads).ladders
    content = change(SCRIPT, f"ladders.0.{path}", value)
    refused(lambda: load(content, workloads), f"mine.yaml: ladders.0.{said}")


def test_a_pattern_cannot_tell_when_work_is_done(load):
    mix = {"members": {"mine": 1}, "methods": ["naive"], "work": {"mine": 9}}
    study = {"description": "x", "mixes": [mix | {"measure": {"kind": "completion"}}]}
    assert load(study, load.catalogue({"mine": COMMAND})).mixes
    workloads = load.catalogue({"mine": COMMAND | {"steps": r"(?P<step>\d+)"}})
    refused(lambda: load(study, workloads), "mine.yaml: mixes.0.measure.kind: a pattern")


# -- mistakes in config.yaml and --config ---------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"studdy": "x"}, ["studdy: unknown key", "did you mean 'study'?"]),
        ({"source": "fake"}, ["source: ", "'auto', 'real' or 'synthetic', got 'fake'"]),
        ({"budget": "soon"}, ["budget: ", "90s, 3m or 2h", "not soon"]),
        ({"wait": 10}, ["wait: ", "90s", "not 10"]),
        ({"results": "a{b}"}, ["results: ", "[^{}:]"]),
        ({"data": "gs:there"}, ["data: ", "[^{}:]"]),
        ({"gpu": 1.5}, ["gpu", "got 1.5"]),
        ({"budget": "\ud800"}, ["surrogates not allowed"]),
        ({"timeout": {"biuld": 3}}, ["timeout.biuld: ", "'build'", "'stop'"]),
    ],
)
def test_mistakes_in_config(values, words):
    refused(lambda: load_config(values), "config/config.yaml or the command line: ", *words)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("wait=\x1b[2J", ["wait=?[2J: a value that is no YAML"]),
        (f"results={'9' * 5000}", ["results=99", " ... ", ": a value that is no YAML"]),
        ("data=!!bool x", ["data=!!bool x: a value that is no YAML"]),
    ],
)
def test_values_of_the_command_line(pair, words):
    refused(
        lambda: settings.read_config_values([pair]),
        "config/config.yaml or the command line: ",
        *words,
    )


@pytest.mark.parametrize("content", ["", "[1]", "study"])
def test_a_config_that_has_no_keys(tmp_path, monkeypatch, content):
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(content)
    refused(
        lambda: settings.read_config_values(["study=x"]), "config.yaml: has no keys; allowed: study"
    )


def test_a_tilde_is_the_home_folder():
    assert load_config({"results": "~/mine"}).results == str(Path.home() / "mine")


def test_a_time_has_a_unit():
    for text, expected in (("90s", 90), ("25m", 1500), ("1.5 h", 5400), ("0s", 0)):
        assert parse_seconds(load_config({"budget": text}).budget) == expected
    for text in ("", "m", "5 days", "1e3", "-1", "5mm", "25", 90):
        refused(lambda text=text: load_config({"wait": text}), "wait: ")
