"""Reading config.yaml, workloads.yaml and studies/*.yaml into the models of study.py.

Everything a person can get wrong is refused here, before anything runs, as one line that names
the file, the key and what is allowed (`ConfigError`).
"""

import re
import reprlib
from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from workflow.collocation import ROOT
from workflow.collocation.spec.errors import ConfigError, allowed, not_allowed
from workflow.collocation.spec.names import ALTERNATE, ARMS
from workflow.collocation.spec.study import Config, Ladder, Study
from workflow.collocation.spec.workloads import KINDS, Workload, model_of

CONFIG_SOURCE = "config/config.yaml or --config"
PROJECT = ("analysis", "bench", "models", "release", "tests", "workflow")  # no models of anybody's


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
    except RecursionError:
        raise ConfigError(f"{_shown(path)}: not valid YAML: nested too deeply") from None
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
    except ValidationError as caught:
        error, *more = caught.errors()
        # '[key]' marks a complaint about a mapping's key, not its value.
        parts = [key, *(part for part in error["loc"] if part != "[key]")]
        if error["type"] == "unknown_key":
            parts.append(error["ctx"]["key"])
        where = ".".join(str(part) for part in parts if part != "")
        said = ": ".join(filter(None, (source, where, _explain(error))))
        raise ConfigError(said + (f" (and {len(more)} more)" if more else "")) from None


def _explain(error) -> str:
    given = reprlib.repr(error.get("input"))
    match error["type"]:
        case "unknown_key":
            return error["msg"]
        case "literal_error":
            known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
            return f"{given} is not allowed; {allowed(error['input'], known)}"
        case "missing":
            return "is missing"
        case "value_error":
            return str(error["ctx"]["error"])
        case "model_type" | "dict_type":
            return f"must map keys to values, got {given}"
    message = error["msg"]
    return f"{message[0].lower()}{message[1:]}, got {given}"


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


def load_workloads(path: Path, modules: Iterable[str] = ()) -> dict[str, Workload]:
    """The catalogue: name → Workload. Raises ConfigError, also for code that nobody here trusts.

    modules: whose code this machine's config lets a workload name.
    """
    content, source = read_yaml(path), _shown(path)
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{source}: must map workload names to their settings")
    for name in content:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", str(name)):
            raise ConfigError(f"{source}: '{name}': allowed in a workload's name: a-z, 0-9, _")
    found = {name: _load_workload(value, source, name) for name, value in content.items()}
    for name, workload in found.items():
        for key, code in workload.own_code.items():
            if not _trusted(module := code.partition(":")[0], modules):
                raise ConfigError(
                    f"{source}: {name}.{key}: '{module}' is no file at the top of this repository; "
                    f"if you trust its code, name it in {CONFIG_SOURCE}: modules=[{module}]"
                )
    return found


def _trusted(module: str, modules: Iterable[str]) -> bool:
    """Whether a catalogue may have its code run: it may be somebody else's, and call anything.

    A folder without __init__.py is none of the repository's packages: results that somebody sent
    lie in such ones.
    """
    if any(module == known or module.startswith(f"{known}.") for known in modules):
        return True
    top = module.partition(".")[0]
    files = (ROOT / f"{top}.py", ROOT / top / "__init__.py")
    return top not in PROJECT and any(file.is_file() for file in files)


def _load_workload(value, source: str, name: str) -> Workload:
    kind = str(value.get("kind", "vision")) if isinstance(value, dict) else "vision"
    try:
        return check(model_of(kind), value, source, name)
    except KeyError:
        known = [*KINDS, "module:Class"]
        raise ConfigError(f"{source}: " + not_allowed(f"{name}.kind", kind, known)) from None


def load_study(folder: Path, name: str, workloads: dict[str, Workload]) -> Study:
    """A study by name, checked against the catalogue. Raises ConfigError."""
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise ConfigError(
            f"{CONFIG_SOURCE}: study: '{name}' is not in {_shown(folder)}; "
            + allowed(name, ["auto", *known])
        )
    path = folder / f"{name}.yaml"
    source = _shown(path)
    study = check(Study, read_yaml(path), source)
    for where, group in study.groups():
        where = f"{source}: {where}"
        for name in group.names:
            if name not in workloads:
                key = "workloads" if isinstance(group, Ladder) else "members"
                raise ConfigError(
                    f"{where}.{key}: unknown workload '{name}'; {allowed(name, workloads)}"
                )
            _check_arms(where, group, study, name, workloads[name])
            if workloads[name].kind == "command":
                _check_command(where, group, study, name)
    planned = sorted({name for _, group in study.groups() for name in group.names})
    for name in study.cores_for_workload:
        if name not in planned:
            raise ConfigError(f"{source}: " + not_allowed("cores_for_workload", name, planned))
    return study


def _check_arms(where, group, study, name, workload) -> None:
    mode = group.input or workload.input.mode
    others = ", ".join(arm for arm in ARMS if not ARMS[arm]["cuda_graph"])
    for arm in group.arms or study.arms:
        if ARMS[arm]["cuda_graph"] and (why := workload.no_graph(mode)):
            raise ConfigError(
                f"{where}.arms: '{arm}' captures the whole step in a CUDA graph, and not that of "
                f"'{name}': {why}; allowed: {others}"
            )


def _check_command(where, group, study, name) -> None:
    """What the study cannot ask of a script that it does not write."""
    if group.input:
        raise ConfigError(f"{where}.input: the command '{name}' reads its own; leave it out")
    if study.kind(group) == ALTERNATE:
        raise ConfigError(
            f"{where}.measure.kind: 'alternate' needs a job that can be held between its steps; "
            f"'{name}' is a command; allowed: window, departure, completion"
        )
    if isinstance(group, Ladder) and len(arms := group.arms or study.arms) > 1:
        raise ConfigError(
            f"{where}.arms: no arm changes the command '{name}'; allowed: one, such as {arms[0]}"
        )
