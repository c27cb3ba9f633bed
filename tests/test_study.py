"""Config files: what is right loads; a mistake is one line with file, key and what is allowed."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from workflow.collocation.spec import load as settings
from workflow.collocation.spec.load import ConfigError, load_config, load_study, load_workloads
from workflow.collocation.spec.methods import METHODS
from workflow.collocation.spec.study import (
    CONFIG,
    SCHEMAS,
    Study,
    seconds,
    write_schemas,
)

STUDIES = CONFIG / "studies"
WORKLOADS = load_workloads(CONFIG / "workloads.yaml")
SMALL, LARGE, DLRM = "resnet26_cifar10_b32", "resnet152_imagenet_b32", "dlrm_criteo_b2048"
PAIR = {SMALL: 1, LARGE: 1}
STUDY = {
    "description": "a test",
    "ladders": [{"workloads": [SMALL], "counts": {1: ["naive"], 2: ["naive"]}}],
    "mixes": [{"members": PAIR, "methods": ["naive"]}],
}
WORKLOAD = {"model": "resnet26", "dataset": "cifar10", "batch_size": 32, "input_size": 32}


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
    assert [word for word in words if word not in message] == [], message


@pytest.fixture
def study(tmp_path):
    """Loads a study from its content: a text, or what YAML would give."""

    def load(content) -> Study:
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        (tmp_path / "mine.yaml").write_text(text)
        return load_study(tmp_path, "mine", WORKLOADS)

    return load


@pytest.fixture
def catalogue(tmp_path):
    """Loads a catalogue from its content."""

    def load(content):
        (tmp_path / "workloads.yaml").write_text(yaml.safe_dump(content))
        return load_workloads(tmp_path / "workloads.yaml", ["mine", "their.nets"])

    return load


# -- what is shipped ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [path.stem for path in STUDIES.glob("*.yaml")])
def test_shipped_studies_load(name):
    assert load_study(STUDIES, name, WORKLOADS).description


def test_the_papers_hyperparameters_are_the_defaults():
    workload = WORKLOADS[SMALL]
    sgd = {"name": "sgd", "base_lr": 0.1, "base_batch": 256, "momentum": 0.9, "nesterov": True}
    decay = {"weight_decay": 2e-5, "schedule": "cosine", "schedule_epochs": 300}
    assert workload.optimizer.model_dump() == sgd | decay
    assert (workload.label_smoothing, workload.classes) == (0.1, 1000)


def test_exported_schemas_are_those_of_the_models(tmp_path):
    write_schemas(tmp_path)
    fresh = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    shipped = {path.name: json.loads(path.read_text()) for path in SCHEMAS.iterdir()}
    assert shipped == fresh, "python -m workflow.collocation.spec.study writes them"
    assert len(shipped) == 3


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_every_key_says_what_it_is_and_what_it_may_be(path):
    schema = json.loads(path.read_text())
    models = [schema, *schema.get("$defs", {}).values()]
    keys = {
        f"{model.get('title')}.{name}": key
        for model in models
        for name, key in model.get("properties", {}).items()
    }
    assert len(keys) > 15
    assert not [name for name, key in keys.items() if not key.get("description")]
    # A default that says nothing needs an example; a word of a few or a model says it all.
    said = {"enum", "const", "$ref", "examples"}
    none = (None, [], {}, "")
    assert not [
        name
        for name, key in keys.items()
        if not any(f'"{word}":' in json.dumps(key) for word in said) and key.get("default") in none
    ]


# -- mistakes in a study --------------------------------------------------------------------------

# Where what stands instead (YAML), and words of the sentence that says so.
STUDY_MISTAKES = r"""
replicats: 3 | replicats: unknown key | did you mean 'replicates'?
arms: [fast] | arms.0: 'fast' | allowed: paper_step, paper_default,
datasets: {cifar: {}} | datasets.cifar | digits | 'cifar10'?
cores_for_workload: {resnet: 2} | cores_for_workload: 'resnet' is not allowed | SMALL
measure: {kind: completion} | ladders.0: a completion is measured of 'mixes' only
measure: {kind: departure} | ladders.0: a departure needs at least 2 members
ladders.0.measure: {windw_s: 3} | ladders.0.measure.windw_s: unknown key | \
    allowed: kind, window_s | mean 'window_s'?
ladders.0.workloads: [resnet26_cifar10_b23] | \
    ladders.0.workloads: unknown workload 'resnet26_cifar10_b23' | did you mean 'SMALL'
ladders.0.cores: all | ladders.0: cores 'all' | share
ladders.0.counts: {1: [mp]} | ladders.0.counts.1.0: 'mp' is not allowed | did you mean 'mps'? | \
    METHODS
ladders.0.counts: {0: [naive]} | counts.0 | equal to 1, got 0
ladders.0.counts: {8: [naive, mig]} | ladders.0: 'mig' holds at most 7 | not 8 | \
    allowed for 8: naive, naive_again, mps,
ladders.0.counts: {2: [mig_7g]} | 'mig_7g' holds at most 1 member(s), not 2 | \
    allowed for 2: naive, | , mig,
ladders.0: {workloads: [SMALL], counts: {2: [naive]}, arms: [graph], input: files} | \
    ladders.0.arms: 'graph' captures the whole step in a CUDA graph, and not that of | \
    loader processes read its files | allowed: paper_step, paper_default, eager, bf16, bf16_autograd
mixes.0.members: {nothing_like_it: 1} | \
    mixes.0.members: unknown workload 'nothing_like_it' | allowed: SMALL, 
mixes.0.members: {SMALL: 48, LARGE: 1} | mixes.0: 49 members | at most 48
mixes.0.methods: [naive, mig] | mixes.0: MIG needs a slice for | SMALL | LARGE | 'slices'
mixes.0.slices: {SMALL: 1g, LARGE: half} | mixes.0.slices.LARGE: | got 'half'
mixes.0.departs: DLRM | mixes.0: | 'DLRM' is not among | SMALL
mixes.0.departs: SMALL | mixes.0.departs: allowed with measure {kind: departure} only
mixes.0: {members: {SMALL: 1, LARGE: 1}, methods: [mig_4g], slices: {SMALL: 4g, LARGE: 4g}} | \
    mixes.0: 'mig_4g' holds at most 1 member(s), not 2
mixes.0: {members: {SMALL: 1, DLRM: 1}, methods: [naive], measure: {kind: completion}, \
    work: {SMALL: 3}} | mixes.0.work: give the steps of 'DLRM'
mixes.0: {members: {SMALL: 2}, methods: [naive], work: {SMALL: 3}} | \
    mixes.0.work: allowed with measure {kind: completion} only
variants: {mps_free: {}} | \
    variants.mps_free: a variant limits something; allowed: sm_percent, pinned_memory_mb
variants: {mps_equal: {sm_percent: 10}} | variants.mps_equal: is a method already
variants: {naive_slow: {sm_percent: 10}} | variants.naive_slow | should match pattern '^mps_
variants: {mps_all: {sm_percent: 101}} | \
    variants.mps_all.sm_percent: 101 is not allowed; allowed: equal, overlap, a percentage
variants: {mps_first: {priority: {SMALL: 0, LARGE: 2}}} | \
    variants.mps_first.priority: 2 is not allowed; allowed: 0 (normal) or 1 (below normal)
"""
STUDY_MISTAKES = STUDY_MISTAKES.replace("\\\n", "")
for name in ("SMALL", "LARGE", "DLRM"):
    STUDY_MISTAKES = STUDY_MISTAKES.replace(name, globals()[name])


@pytest.mark.parametrize("mistake", STUDY_MISTAKES.strip().splitlines())
def test_mistakes_in_a_study(study, mistake):
    instead, *words = mistake.split(" | ")
    [(path, value)] = yaml.safe_load(instead).items()
    words = [*words[:-1], *METHODS] if "METHODS" in words[-1] else words
    refused(lambda: study(change(STUDY, path, value)), "mine.yaml: ", *map(str.strip, words))


def test_a_variant_that_forgets_a_member(study):
    content = change(STUDY, "variants", {"mps_some": {"sm_percent": {SMALL: 40}}})
    refused(
        lambda: study(change(content, "mixes.0.methods", ["mps_some"])),
        f"mine.yaml: variants.mps_some: says nothing of '{LARGE}', used in mixes.0",
    )
    assert study(change(content, "ladders.0.counts", {2: ["mps_some"]})).variants


def test_the_study_that_the_mistakes_are_made_in_is_right(study):
    assert study(STUDY).replicates == 3
    assert study(change(STUDY, "arms", ["graph"])).arms == ["graph"]
    refused(lambda: study({"description": "x"}), "mine.yaml: ", "'ladders' or 'mixes'")


def test_several_mistakes_the_misspelt_key_first(study):
    content = {**STUDY, "sed": 1, "replicates": 0}
    refused(lambda: study(content), "mine.yaml: sed: unknown key", "'seed'?")
    content = {**STUDY, "seed": -1, "replicates": 0}
    refused(lambda: study(content), "mine.yaml: seed: ", "(and 1 more)")


def test_unknown_study():
    refused(
        lambda: load_study(STUDIES, "papr", WORKLOADS),
        "--config: study: 'papr' is not in config/studies",
        "archive, arms, h100, h200, kick, methods, paper, smoke, tuning",
        "; did you mean 'paper'?",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description: a\nseed: 1\nseed: 2\n", ["line 3: ", "the key 'seed' stands there twice"]),
        ("ladders:\n  - {counts: {1: [naive]}, counts: {}}\n", ["line 2: ", "key 'counts'"]),
        ("ladders: [1,\nmixes: 2\n", ["line 3: not valid YAML: expected ','"]),
        ("description: a\n\tseed: 1\n", ["line 2: not valid YAML: "]),
        ("description: !!python/name:os.system\n", ["line 1: not valid YAML: "]),
        ("", ["must map keys to values, got None"]),
        ("- a\n", ["must map keys to values, got ['a']"]),
    ],
)
def test_broken_yaml(study, text, words):
    refused(lambda: study(text), "mine.yaml:", *words)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe\n")
    refused(lambda: settings.read_yaml(tmp_path / "bytes.yaml"), "bytes.yaml: not valid YAML")
    refused(lambda: settings.read_yaml(tmp_path / "no.yaml"), "no.yaml: cannot be read: No such")
    refused(lambda: settings.read_yaml(tmp_path), "cannot be read: Is a directory")


def test_merged_keys_may_be_overridden(study):
    text = yaml.safe_dump({"description": "x"}) + (
        "mixes:\n"
        f"  - &a {{members: {{{SMALL}: 2}}, methods: [naive]}}\n"
        f"  - {{<<: *a, members: {{{SMALL}: 3}}}}\n"
    )
    assert [mix.members[SMALL] for mix in study(text).mixes] == [2, 3]


# -- mistakes in the catalogue --------------------------------------------------------------------


OTHERS = ["torch.hub:load", "os:system", "minette:net", "their:net", "models.data.prepare:main"]
OTHERS += ["results.planted.code:net", "workflow.x:y"]


@pytest.mark.parametrize("named", [{"model": code} for code in OTHERS] + [{"kind": OTHERS[1]}])
def test_code_of_others_is_refused(catalogue, named):
    """A study is YAML that may be somebody else's: what it calls is named on this machine."""
    [(key, code)] = named.items()
    words = [f"mine.{key}: '{code.partition(':')[0]}' is no file at the top", "modules=["]
    refused(lambda: catalogue({"mine": WORKLOAD | named}), "workloads.yaml: ", *words)


@pytest.mark.parametrize("code", ["mine:net", "mine.nets:net", "their.nets.small:net", "kin:net"])
def test_code_named_in_config_or_at_the_top_of_the_repository_is_not(
    tmp_path, catalogue, monkeypatch, code
):
    """But for what lies in a folder that is no package, as results of others do."""
    (tmp_path / "kin.py").touch()
    (tmp_path / "results" / "code").mkdir(parents=True)
    (tmp_path / "results" / "code" / "__init__.py").touch()
    monkeypatch.setattr(settings, "ROOT", tmp_path)
    assert catalogue({"mine": WORKLOAD | {"model": code}})["mine"].model == code
    refused(lambda: catalogue({"mine": WORKLOAD | {"model": "results.code:net"}}), "at the top")


COMMAND = {"kind": "command", "run": ["python", "train.py", "--epochs", 100], "batch_size": 8}
# Of a command, and of a model: what stands instead (YAML), and words of the sentence.
COMMAND_MISTAKES = r"""
run: python train.py | mine.run: give a list such as [python, train.py
run: [] | mine.run: | at least 1 item
steps: 'loss (' | mine.steps: give hook or a regular expression
unit: images | mine.unit: 'images' is not allowed | tokens
model: resnet26 | mine.model: unknown key; allowed: | run, folder, steps
environment: {A B: 1} | mine.environment: 'A B' names no variable
environment: {CUDA_VISIBLE_DEVICES: 1} | VISIBLE_DEVICES is the study's to set
environment: {OMP_NUM_THREADS: 1} | OMP_NUM_THREADS is the study's to set
environment: {MALLOC_CONF: null} | MALLOC_CONF changes | give its value
environment: {A: true} | mine.environment.A:
"""
MODEL_MISTAKES = r"""
modle: resnet26 | mine.modle: unknown key | did you mean 'model'?
model: resnet 26 | mine.model: give a timm model name or module:function
model_args: {checkpoint_path: x} | mine.model_args: 'checkpoint_path' is not
model_args: {pretrained_cfg: {url: x}} | 'pretrained_cfg' is not | the seed
model_args: {1: 2} | mine.model_args.1: | string, got 1
dataset: criteo | mine.dataset: 'criteo' is not allowed | imagenet64, imagenet
kind: visoin | mine.kind: 'visoin' is not allowed | dlrm | mean 'vision'?
kind: dlrm | mine.input_size: unknown key; allowed: | batch_size
"""


@pytest.mark.parametrize(
    ("right", "mistake"),
    [(COMMAND, row) for row in COMMAND_MISTAKES.strip().splitlines()]
    + [(WORKLOAD, row) for row in MODEL_MISTAKES.strip().splitlines()],
)
def test_mistakes_in_the_catalogue(catalogue, right, mistake):
    assert catalogue({"mine": right})["mine"].batch_size in (8, 32)
    instead, *words = mistake.split(" | ")
    changed = {"mine": right | yaml.safe_load(instead)}
    refused(lambda: catalogue(changed), "workloads.yaml: mine", *map(str.strip, words))


TURNS = {"workloads": ["mine"], "counts": {1: ["alone", "mps"]}, "measure": {"kind": "alternate"}}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("ladders.0.input", "files", ["ladders.0.input: the command 'mine' reads its own"]),
        ("ladders.0", TURNS, ["ladders.0.measure.kind: 'alternate'", "held", "allowed: window"]),
        ("arms", ["paper_step", "bf16"], ["ladders.0.arms: no arm changes the command 'mine'"]),
        ("ladders.0.arms", ["graph"], ["'mine': a script of your own runs unchanged"]),
        ("ladders.0.arms", ["compile"], ["'compile' captures the whole step"]),
    ],
)
def test_what_a_study_cannot_ask_of_a_command(tmp_path, catalogue, path, value, words):
    workloads = catalogue({"mine": COMMAND})
    content = {
        "description": "a test",
        "ladders": [{"workloads": ["mine"], "counts": {1: ["mps"]}}],
    }

    def load(content):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
        return load_study(tmp_path, "mine", workloads)

    assert load(content).ladders
    refused(lambda: load(change(content, path, value)), "mine.yaml: ", *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1], ["must map workload names"]),
        ({"mine": 5}, ["mine: must map keys to values, got 5"]),
        ({"a/b": WORKLOAD}, ["'a/b': allowed", "a-z, 0-9, _"]),
        ({"mine": {"model": "a", "batch_size": 1}}, ["mine.dataset: is missing"]),
    ],
)
def test_catalogues_that_are_none(catalogue, content, words):
    refused(lambda: catalogue(content), "workloads.yaml: ", *words)


# -- mistakes in config.yaml and --config ---------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"studdy": "x"}, ["studdy: unknown key", "did you mean 'study'?"]),
        ({"source": "fake"}, ["source: 'fake'", "allowed: auto, real, synthetic"]),
        ({"budget": "soon"}, ["budget: give a time such as 90s, 25m or 2h"]),
        ({"results": "a{b}"}, ["results: ", "[^{}:]"]),
        ({"gpu": 1.5}, ["gpu: 1.5 is not allowed; allowed: auto, an index, a UUID, cpu"]),
        ({"timeout": {"biuld": 3}}, ["timeout.biuld: ", "stop", "did you mean 'build'?"]),
        ({"rerun": "all"}, ["rerun: 'all'", "allowed: none, mismatched"]),
    ],
)
def test_mistakes_in_config(values, words):
    refused(lambda: load_config(values), "config/config.yaml or --config: ", *words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("25m", 1500), ("2h", 7200), ("1.5h", 5400), (" 7 s", 7), ("0s", 0)],
)
def test_seconds(text, expected):
    assert seconds(text) == expected
    for wrong in ("", "m", "5 days", "1e3", "-1", "5mm", "25", 90):
        with pytest.raises(ValueError, match="90s, 25m or 2h"):
            seconds(wrong)


def test_files_are_named_as_the_person_knows_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    refused(lambda: settings.read_yaml(tmp_path / "sub" / "no.yaml"), "sub/no.yaml: ")
    with pytest.raises(ConfigError) as caught:
        settings.read_yaml(CONFIG / "no.yaml")
    assert str(caught.value).startswith("config/no.yaml: ")
