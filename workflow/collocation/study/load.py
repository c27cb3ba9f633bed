"""Reads config.yaml, workloads.yaml and studies/*.yaml into their models.

A mistake in a file is refused before anything runs, as a ConfigError: one line with the file, the
key and what is allowed.
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
from workflow.collocation.study.definition import Config, Group, Study
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
TEXT_KEYS = ("run", "environment")  # what stands below these keys is text, also 1 and yes
TAG = "tag:yaml.org,2002:"
YAML_ERRORS = (yaml.YAMLError, RecursionError, ValueError)
# A larger file is a mistake, or an attack in which a few aliases take much memory.
MAX_BYTES, MAX_VALUES, MAX_NUMBER = 250_000, 100_000, 2**63


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys, of which YAML silently keeps the last, and what is too large."""

    def compose_document(self):
        document = super().compose_document()
        _count_values(document, {})
        return document

    def construct_object(self, node, deep=False):
        with suppress(ValueError, LookupError, AttributeError):  # PyYAML's errors of bad scalars
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # fails for half of a surrogate pair
            if not isinstance(value, int) or abs(value) <= MAX_NUMBER:
                return value
        raise _mistake(node, f"{reprlib.repr(node.value)} is no {node.tag.removeprefix(TAG)}")

    def construct_mapping(self, node, deep=False):
        if not isinstance(node, yaml.MappingNode):
            raise _mistake(node, "keys with values are expected here")
        names = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else key
            if name in names:
                raise _mistake(key, f"the key '{name}' stands there twice")
            names.add(name)
        self.flatten_mapping(node)
        for index, (key, value) in enumerate(node.value):
            if key.value in TEXT_KEYS:
                node.value[index] = key, _as_text(value)
        return super().construct_mapping(node, deep)


def _mistake(node, message: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _count_values(node, counts: dict) -> int:
    """How many values a node has if its aliases are followed. Raises YAMLError for too many."""
    if node not in counts:
        counts[node] = MAX_VALUES  # for a node that holds itself
        pairs = node.value if isinstance(node, yaml.MappingNode) else [node.value]
        inner = itertools.chain(*pairs) if isinstance(node, yaml.CollectionNode) else ()
        counts[node] = 1 + sum(_count_values(value, counts) for value in inner)
    if counts[node] > MAX_VALUES:
        raise _mistake(node, f"more than {MAX_VALUES:,} values, or one that holds itself")
    return counts[node]


def _as_text(node):
    """A copy of a node whose scalars are all text, except nulls in a mapping."""
    if isinstance(node, yaml.SequenceNode):
        items = [_as_text(item) for item in node.value]
        return yaml.SequenceNode(node.tag, items, node.start_mark)
    if isinstance(node, yaml.MappingNode):
        pairs = [(k, v if v.tag == f"{TAG}null" else _as_text(v)) for k, v in node.value]
        return yaml.MappingNode(node.tag, pairs, node.start_mark)
    return yaml.ScalarNode(f"{TAG}str", node.value, node.start_mark)


def read_yaml(path: Path):
    """The content of a YAML file. Raises ConfigError with file and line."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise ConfigError(f"{path}: cannot be read: it has more than {MAX_BYTES:,} bytes")
            return yaml.load(file, _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except YAML_ERRORS as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


# pydantic's type of an error → what is allowed.
SHAPES = {"dict_type": "keys with values, {a: 1, b: 2}", "list_type": "a list, [a, b]"}


def validate(model: type[BaseModel], value, source: str, key: str = ""):
    """Return `value` as an instance of `model`.

    source: the file that it comes from, for messages. key: where it stands in that file. Raises
    ConfigError: one line with file, key and what is allowed.
    """
    try:
        return model.model_validate(value)
    except UnicodeEncodeError as error:  # half of a surrogate pair, from a command line
        raise ConfigError(f"{source}: {key}: {error}") from None
    except ValidationError as invalid:
        error, *more_errors = invalid.errors()
        # '[key]' marks an error in a mapping's key, not in its value.
        parts = [str(part) for part in (key, *error["loc"]) if part not in ("", "[key]")]
        message = error["msg"].removeprefix("Value error, ")
        models = {other.__name__: other for other in (model, *Strict.__subclasses__())}
        expected_model = models.get(error.get("ctx", {}).get("class_name"))
        if expected_model:
            message = f"has no keys; allowed: {', '.join(expected_model.model_fields)}"
        elif error["type"] in SHAPES:
            message = f"allowed: {SHAPES[error['type']]}, got {reprlib.repr(error['input'])}"
        elif error["type"] not in ("missing", "value_error"):
            message += f", got {reprlib.repr(error['input'])}"
        message = ": ".join(filter(None, (source, ".".join(parts), message)))
        if more_errors:
            message += f" (and {len(more_errors)} more)"
        raise ConfigError(message) from None


def as_yaml(value: object) -> str:
    """A value as it may stand after `key=` on a command line: JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False)


def read_config_values(pairs: list[str]) -> dict:
    """The values of config.yaml with KEY=VALUE arguments over them, which are YAML.

    Raises ConfigError.
    """
    path = ROOT / "config" / "config.yaml"
    values = read_yaml(path)
    validate(Config, values, str(path))
    for pair in pairs:
        key, _, value = pair.partition("=")
        try:
            values[key] = yaml.load(value, _Loader)
        except YAML_ERRORS:
            raise ConfigError(f"{CONFIG_SOURCE}: {pair}: a value that is no YAML") from None
    return values


def load_config(values: dict) -> Config:
    """The config of these values. Raises ConfigError."""
    return validate(Config, values, CONFIG_SOURCE)


def choose_study(config: Config, default: str, default_reason: str) -> tuple[str, str]:
    """The name of the study and the reason for it.

    default: what `auto` stands for on this machine. If nothing may be measured, `auto` stands for
    the only study with results. Raises ConfigError if the study then has no results.
    """
    is_auto = config.study == "auto"
    name, reason = (default, default_reason) if is_auto else (config.study, "as asked for")
    if config.measure is not False:
        return name, reason
    planned = {path.stem for path in find_config_file(config.studies).glob("*.yaml")}
    measured = {path.parent.name for path in Path(config.results).glob("*/cells")}
    # Folders without a study's file were contributed, for comparisons alone.
    names = sorted(measured & planned)
    if name in names:
        return name, reason
    if is_auto and len(names) == 1:
        return names[0], "the one that is there"
    allowed = ", ".join(names) or "none"
    raise ConfigError(f"study: {config.results}/{name} holds no results; there are: {allowed}")


def find_config_file(path: str) -> Path:
    """A path of the config, relative to the working directory or else to the repository."""
    return Path(path) if Path(path).exists() else ROOT / path


def load_workloads(path: Path) -> dict[str, Workload]:
    """The catalogue of workloads, by name. Raises ConfigError."""
    content = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{path}: must map workload names to their settings")
    workloads = {}
    for name, value in content.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
            raise ConfigError(f"{path}: '{name}': allowed in a workload's name: a-z, 0-9, _")
        kind = str(value.get("kind", "vision")) if isinstance(value, dict) else "vision"
        if kind not in WORKLOAD_KINDS and ":" not in kind:
            kinds = [*WORKLOAD_KINDS, "module:Class"]
            raise ConfigError(f"{path}: " + not_allowed(f"{name}.kind", kind, kinds))
        workloads[name] = validate(workload_model(kind), value, str(path), name)
    return workloads


def load_study(folder: Path, name: str, workloads: dict[str, Workload]) -> Study:
    """The study `folder`/`name`.yaml, checked against the catalogue. Raises ConfigError."""
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in names:
        message = f"study: '{name}' is not in {folder}; {allowed_values(name, ['auto', *names])}"
        raise ConfigError(f"{CONFIG_SOURCE}: {message}")
    path = folder / f"{name}.yaml"
    study = validate(Study, read_yaml(path), str(path))

    def check_exists(key: str, workload: str) -> None:
        if workload not in workloads:
            message = f"unknown workload '{workload}'; {allowed_values(workload, workloads)}"
            raise ConfigError(f"{path}: {key}: {message}")

    for workload in study.cores_for_workload:
        check_exists("cores_for_workload", workload)
    for key, group in study.groups():
        for workload in group.workload_names:
            check_exists(key, workload)
            mistake = _mistake_of_workload(study, group, workload, workloads[workload])
            if mistake:
                raise ConfigError(f"{path}: {key}.{mistake}")
    return study


def _mistake_of_workload(study: Study, group: Group, name: str, job: Workload) -> str | None:
    """Why a job cannot be measured as its group demands, as `key: sentence`."""
    kind = study.measure_of(group).kind
    input_mode = group.input or job.input.mode
    methods = {split_count(word)[1] for _, _, words in group.scenarios() for word in words}
    if job.kind == "command" and group.input:
        return f"input: the command '{name}' reads its own; leave it out"
    if STREAMS in methods and (job.arrivals or not isinstance(job, TrainedWorkload)):
        return f"{STREAMS}: '{name}' ({job.kind}) is a process of its own; take naive or mps"
    if input_mode == SHARED:
        if job.kind != "vision" or len(group.workload_names) > 1 or job.arrivals:
            return f"input: one loader feeds copies of one image classifier; '{name}' is not fed so"
        if kind != "window" or not {*map(family_of, methods)} <= {"naive", "mps"}:
            return "input: jobs that share a loader take kind window, and the methods naive and mps"
    if kind in (INTERLEAVED, COMPLETION):
        if job.arrivals:
            reason = f"{job.arrivals} wait for nobody, so '{name}' takes window or departure"
            return f"measure.kind: {reason}"
        if job.kind == "command" and job.steps != "auto":
            reason = f"a pattern tells of the steps of '{name}' too late; use steps: auto"
            return f"measure.kind: {reason}"
    graph_obstacle = job.graph_obstacle(input_mode)
    for implementation in group.implementations or study.implementations:
        if graph_obstacle and IMPLEMENTATIONS[implementation]["cuda_graph"]:
            graph = f"'{implementation}' captures the step of '{name}' in a CUDA graph"
            return f"implementations: {graph}: {graph_obstacle}"
    return None
