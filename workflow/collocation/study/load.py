"""Reading config.yaml, workloads.yaml and studies/*.yaml into the models of study.py.

Everything a person can get wrong is refused here, before anything runs, as one line that names
the file, the key and what is allowed (`ConfigError`).
"""

import itertools
import json
import os
import re
import reprlib
from contextlib import suppress
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from workflow.collocation import ROOT
from workflow.collocation.study.definition import Config, Study
from workflow.collocation.study.errors import ConfigError, Strict, allowed_values, not_allowed
from workflow.collocation.study.names import (
    COMPLETION,
    IMPLEMENTATIONS,
    INTERLEAVED,
    SHARED,
    STREAMS,
    family_of,
    split_count,
)
from workflow.collocation.study.regular_files import open_regular
from workflow.collocation.study.workloads import (
    WORKLOAD_KINDS,
    TrainedWorkload,
    Workload,
    workload_model,
)

CONFIG_SOURCE = "config/config.yaml or the command line"
TEXT_KEYS = ("run", "environment")  # keys: words of a script
TAG = "tag:yaml.org,2002:"
NO_YAML = (yaml.YAMLError, RecursionError, ValueError)
# Beyond these a file is a mistake, or somebody's that makes little text much memory.
MOST_BYTES, MOST_VALUES, LARGEST = 250_000, 100_000, 2**63


class _Loader(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; a person meant neither."""

    def compose_document(self):
        document = super().compose_document()
        _count(document, {})
        return document

    def construct_object(self, node, deep=False):
        with suppress(ValueError, LookupError, AttributeError):  # by which YAML's types fail
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # fails for half a character, which no text holds
            if not isinstance(value, int) or abs(value) <= LARGEST:
                return value
        raise _mistake(node, f"{reprlib.repr(node.value)} is no {node.tag.removeprefix(TAG)}")

    def construct_mapping(self, node, deep=False):
        if not isinstance(node, yaml.MappingNode):
            raise _mistake(node, "keys with values are expected here")
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else key
            if name in seen:
                raise _mistake(key, f"the key '{name}' stands there twice")
            seen.add(name)
        self.flatten_mapping(node)
        node.value = [(k, _text(v) if k.value in TEXT_KEYS else v) for k, v in node.value]
        return super().construct_mapping(node, deep)


def _mistake(node, why: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def _count(node, known: dict) -> int:
    """How many values a node has when its aliases are followed. Raises YAMLError for too many."""
    if node not in known:
        known[node] = MOST_VALUES  # for a node that holds itself
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        inner = itertools.chain(*pairs) if isinstance(node, yaml.CollectionNode) else ()
        known[node] = 1 + sum(_count(value, known) for value in inner)
    if known[node] > MOST_VALUES:
        raise _mistake(node, f"more than {MOST_VALUES:,} values, or one that holds itself")
    return known[node]


def _text(node):
    """A copy of a node in which whatever stands there is text, but for nulls of a mapping."""
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_text(item) for item in node.value], node.start_mark)
    if isinstance(node, yaml.MappingNode):
        pairs = [(k, v if v.tag == f"{TAG}null" else _text(v)) for k, v in node.value]
        return yaml.MappingNode(node.tag, pairs, node.start_mark)
    return yaml.ScalarNode(f"{TAG}str", node.value, node.start_mark)


def read_yaml(path: Path):
    """The content of a YAML file. Raises ConfigError with file and line."""
    try:
        with open_regular(path) as content:
            if os.fstat(content.fileno()).st_size > MOST_BYTES:
                raise ConfigError(f"{path}: cannot be read: it has more than {MOST_BYTES:,} bytes")
            return yaml.load(content, _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except NO_YAML as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


# What pydantic calls a valid dictionary, a valid list.
SHAPES = {"dict_type": "keys with values, {a: 1, b: 2}", "list_type": "a list, [a, b]"}


def validate(model: type[BaseModel], value, source: str, key: str = ""):
    """`value` as `model`; `key` is where it stands in the file `source`.

    Raises ConfigError: one line with file, key and what is allowed.
    """
    try:
        return model.model_validate(value)
    except UnicodeEncodeError as error:  # half a character, from a command line
        raise ConfigError(f"{source}: {key}: {error}") from None
    except ValidationError as caught:
        error, *more = caught.errors()
        # '[key]' marks a complaint about a mapping's key, not its value.
        where = ".".join(str(part) for part in (key, *error["loc"]) if part not in ("", "[key]"))
        said = error["msg"].removeprefix("Value error, ")
        models = {each.__name__: each for each in (model, *Strict.__subclasses__())}
        if of := models.get(error.get("ctx", {}).get("class_name")):
            said = f"has no keys; allowed: {', '.join(of.model_fields)}"
        elif error["type"] in SHAPES:
            said = f"allowed: {SHAPES[error['type']]}, got {reprlib.repr(error['input'])}"
        elif error["type"] not in ("missing", "value_error"):
            said += f", got {reprlib.repr(error['input'])}"
        said = ": ".join(filter(None, (source, where, said)))
        raise ConfigError(said + (f" (and {len(more)} more)" if more else "")) from None


def as_yaml(value: object) -> str:
    """A value as it stands after `key=`: JSON is YAML, but for characters in two halves."""
    return json.dumps(value, ensure_ascii=False)


def read_config_values(pairs: list[str]) -> dict:
    """config.yaml with KEY=VALUE arguments over it, as Snakemake reads them. Raises ConfigError."""
    path = ROOT / "config" / "config.yaml"
    values = read_yaml(path)
    validate(Config, values, str(path))
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            values[key] = yaml.load(value, _Loader)
        except NO_YAML:
            raise ConfigError(f"{CONFIG_SOURCE}: {pair}: a value that is no YAML") from None
    return values


def load_config(values: dict) -> Config:
    """config.yaml with what a command line says otherwise. Raises ConfigError."""
    return validate(Config, values, CONFIG_SOURCE)


def load_workloads(path: Path) -> dict[str, Workload]:
    """The catalogue: name → Workload. Raises ConfigError."""
    content, found = read_yaml(path), {}
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{path}: must map workload names to their settings")
    for name, value in content.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
            raise ConfigError(f"{path}: '{name}': allowed in a workload's name: a-z, 0-9, _")
        kind = str(value.get("kind", "vision")) if isinstance(value, dict) else "vision"
        if kind not in WORKLOAD_KINDS and ":" not in kind:
            known = [*WORKLOAD_KINDS, "module:Class"]
            raise ConfigError(f"{path}: " + not_allowed(f"{name}.kind", kind, known))
        found[name] = validate(workload_model(kind), value, str(path), name)
    return found


def load_study(folder: Path, name: str, workloads: dict[str, Workload]) -> Study:
    """A study by name, checked against the catalogue. Raises ConfigError."""
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        said = f"study: '{name}' is not in {folder}; {allowed_values(name, ['auto', *known])}"
        raise ConfigError(f"{CONFIG_SOURCE}: {said}")
    path = folder / f"{name}.yaml"
    study = validate(Study, read_yaml(path), str(path))
    named = [(where, name, group) for where, group in study.groups() for name in group.names]
    planned = [("cores_for_workload", name, None) for name in study.cores_for_workload]
    for where, workload, group in planned + named:
        if workload not in workloads:
            said = f"unknown workload '{workload}'; {allowed_values(workload, workloads)}"
            raise ConfigError(f"{path}: {where}: {said}")
        if group and (said := _refused(study, group, workload, workloads[workload])):
            raise ConfigError(f"{path}: {where}.{said}")
    return study


def _refused(study: Study, group, name: str, job: Workload) -> str | None:
    """What the study cannot ask of a job, with the key where it does."""
    if job.kind == "command" and group.input:
        return f"input: the command '{name}' reads its own; leave it out"
    methods = {split_count(word)[1] for *_, words in group.scenarios() for word in words}
    if STREAMS in methods and (job.arrivals or not isinstance(job, TrainedWorkload)):
        return f"{STREAMS}: '{name}' ({job.kind}) is a process of its own; take naive or mps"
    kind, mode = study.measure_of(group).kind, group.input or job.input.mode
    if mode == SHARED and (job.kind != "vision" or len(group.names) > 1 or job.arrivals):
        return f"input: one loader feeds copies of one image classifier; '{name}' is not fed so"
    if mode == SHARED and (kind != "window" or not {*map(family_of, methods)} <= {"naive", "mps"}):
        return "input: jobs that share a loader take kind window, and the methods naive and mps"
    if job.arrivals and kind in (INTERLEAVED, COMPLETION):
        said = f"{job.arrivals} wait for nobody, so '{name}' takes window or departure"
        return f"measure.kind: {said}"
    counted = job.kind == "command" and job.steps != "auto"  # by lines of its output
    if counted and kind in (INTERLEAVED, COMPLETION):
        return f"measure.kind: a pattern tells of the steps of '{name}' too late; use steps: auto"
    why = job.no_graph(mode)
    for implementation in (group.implementations or study.implementations) if why else ():
        if IMPLEMENTATIONS[implementation]["cuda_graph"]:
            what = f"'{implementation}' captures the step of '{name}' in a CUDA graph"
            return f"implementations: {what}: {why}"
    return None
