"""Reading config.yaml, workloads.yaml and studies/*.yaml into the models of study.py.

Everything a person can get wrong is refused here, before anything runs, as one line that names
the file, the key and what is allowed (`ConfigError`).
"""

import difflib
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from workflow.collocation import ROOT
from workflow.collocation.errors import ConfigError
from workflow.collocation.schema.study import ARMS, Config, Ladder, Mix, Study, not_allowed
from workflow.collocation.schema.workloads import KINDS, Workload, model_of

CONFIG_SOURCE = "config/config.yaml or --config"


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; a person meant neither."""


def _mapping(loader, node, deep=False):
    merge = "tag:yaml.org,2002:merge"  # '<<: *anchor'; its keys may be overridden
    seen = []
    for key_node, _ in node.value:
        key = None if key_node.tag == merge else loader.construct_object(key_node, True)
        if key is not None and key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{key}' stands there twice", key_node.start_mark
            )
        seen.append(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: Path):
    """The content of a YAML file. Raises ConfigError with file and line."""
    try:
        return yaml.load(path.read_bytes(), _UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{_shown(path)}:{line} not valid YAML: {problem}") from None


def check(model: type[BaseModel], value, source: str, key: str = ""):
    """`value` as `model`; `key` is where it stands in the file `source`.

    Raises ConfigError: one line with file, key and what is allowed.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        # A misspelt key is told before the key that is missing for it.
        errors = sorted(error.errors(), key=lambda entry: entry["type"] != "extra_forbidden")
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        # '[key]' marks a complaint about a mapping's key, not its value.
        parts = [part for part in errors[0]["loc"] if part != "[key]"]
        where = ".".join(str(part) for part in (key, *parts) if part != "")
        said = _explain(model, parts, errors[0])
        raise ConfigError(": ".join(filter(None, (source, where, said))) + more) from None


def _explain(model, parts, error) -> str:
    given = reprlib.repr(error.get("input"))
    match error["type"]:
        case "extra_forbidden":
            allowed = _allowed_keys(model, parts[:-1])
            return f"unknown key; allowed: {', '.join(allowed)}{_hint(parts[-1], allowed)}"
        case "literal_error":
            expected = error["ctx"]["expected"]
            hint = _hint(error["input"], re.findall(r"'([^']*)'", expected))
            return f"{given} is not allowed; allowed: {expected}{hint}"
        case "missing":
            return "is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type":
            return f"must map keys to values, got {given}"
    message = error["msg"]
    return f"{message[0].lower()}{message[1:]}, got {given}"


def _hint(name, known) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _allowed_keys(model, parts) -> list[str]:
    schema = model.model_json_schema()
    node = schema
    for part in [*parts, None]:
        while "$ref" in node or "anyOf" in node or "allOf" in node:
            if "$ref" in node:
                node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
            else:
                options = node.get("anyOf") or node.get("allOf")
                node = next(option for option in options if option.get("type") != "null")
        if part is None:
            break
        node = (
            node.get("items", {})
            if isinstance(part, int) and "items" in node
            else node.get("properties", {}).get(part) or node.get("additionalProperties", {})
        )
    return list(node.get("properties", {}))


def _shown(path: Path) -> str:
    """The path as the person knows it: relative to where they are or to the repository."""
    for base in (Path.cwd(), ROOT):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


def read_values(pairs: list[str]) -> dict:
    """config.yaml with KEY=VALUE arguments over it, as Snakemake reads them."""
    values = read_yaml(ROOT / "config" / "config.yaml") or {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        values[key] = yaml.safe_load(value)
    return values


def load_config(values: dict) -> Config:
    """config.yaml with `--config` overrides, as Snakemake merged them. Raises ConfigError."""
    return check(Config, values, CONFIG_SOURCE)


def load_workloads(path: Path) -> dict[str, Workload]:
    """The catalogue: name → Workload. Raises ConfigError."""
    content, source = read_yaml(path), _shown(path)
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{source}: must map workload names to their settings")
    for name in content:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
            raise ConfigError(
                f"{source}: '{name}': allowed in a workload's name, which names folders: "
                "a-z, 0-9, _"
            )
    return {name: _load_workload(value, source, name) for name, value in content.items()}


def _load_workload(value, source: str, name: str) -> Workload:
    kind = str(value.get("kind", "vision")) if isinstance(value, dict) else "vision"
    try:
        model = model_of(kind)
    except KeyError:
        known = [*KINDS, "module:Class"]
        raise ConfigError(f"{source}: " + not_allowed(f"{name}.kind", kind, known)) from None
    return check(model, value, source, name)


def load_study(folder: Path, name: str, workloads: dict[str, Workload]) -> Study:
    """A study by name, checked against the catalogue. Raises ConfigError."""
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(
            f"{CONFIG_SOURCE}: study: '{name}' is not in {_shown(folder)}; "
            f"allowed: auto, {', '.join(known)}{_hint(name, known)}"
        )
    path = folder / f"{name}.yaml"
    source = _shown(path)
    study = check(Study, read_yaml(path), source)
    for where, group in study.groups():
        key = "workloads" if isinstance(group, Ladder) else "members"
        for workload in _named(group):
            if workload not in workloads:
                raise ConfigError(
                    f"{source}: {where}.{key}: unknown workload '{workload}'; allowed: "
                    f"{', '.join(workloads)}{_hint(workload, workloads)}"
                )
            _check_arms(f"{source}: {where}", group, study, workload, workloads[workload])
            if workloads[workload].kind == "command":
                _check_command(f"{source}: {where}", group, study, workload)
    planned = {name for _, group in study.groups() for name in _named(group)}
    for key in ("anchor", "cores_for_workload"):
        for name in getattr(study, key):
            if name not in planned:
                raise ConfigError(f"{source}: " + not_allowed(key, name, sorted(planned)))
    return study


def _named(group: Ladder | Mix) -> Iterable[str]:
    return group.workloads if isinstance(group, Ladder) else group.members


def _check_arms(where, group, study, name, workload) -> None:
    mode = group.input or workload.input.mode
    for arm in group.arms or study.arms:
        if ARMS[arm]["cuda_graph"] and not (workload.capturable and mode == "resident"):
            raise ConfigError(
                f"{where}.arms: '{arm}' captures a vision step with resident input; "
                f"'{name}' is {workload.kind} with {mode} input; allowed: faithful, tuned"
            )


def _check_command(where, group, study, name) -> None:
    """What the study cannot ask of a script that it does not write."""
    if group.input:
        raise ConfigError(f"{where}.input: the command '{name}' reads its own; leave it out")
    if (group.measure.kind or study.measure.kind) == "epochs":
        raise ConfigError(
            f"{where}.measure.kind: 'epochs' needs a job that we validate; '{name}' is a command; "
            "allowed: window, departure, completion"
        )
    if isinstance(group, Ladder) and len(arms := group.arms or study.arms) > 1:
        raise ConfigError(
            f"{where}.arms: no arm changes the command '{name}'; allowed: one, such as {arms[0]}"
        )
