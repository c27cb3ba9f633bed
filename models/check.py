"""Whether there is what workloads name, asked before anything runs: `python -m models.check`.

On standard input: workload → its keys in the catalogue, as JSON; out: workload → key → what is
wrong, in a sentence, for those of which something is.
"""

import inspect
import json
import os
import sys
from importlib import import_module

from models.fork_server import give_way
from models.jobs.base import Job
from workflow.collocation.spec.errors import meant

import timm  # isort: skip


class Absent(Exception):
    """What is wrong, in a sentence."""


def mistake(workload: dict) -> dict[str, str]:
    """Key → sentence, for the first thing that is wrong."""
    kind, model = workload["kind"], workload["model"]
    key = "kind" if ":" in kind else "model"
    try:
        if key == "kind":
            found = named(kind)
            if not (isinstance(found, type) and issubclass(found, Job)):
                raise Absent(f"'{kind}' is no models.jobs.base.Job")
        elif ":" in model:
            arguments = {"num_classes": workload["classes"], **workload["model_args"]}
            inspect.signature(named(model)).bind(**arguments)
        elif kind == "vision" and not timm.is_model(model):
            raise Absent(f"'{model}' is no model of timm{meant(model, timm.list_models())}")
    except Absent as error:
        return {key: str(error)}
    except TypeError as error:
        return {key: f"cannot be called with {', '.join(arguments)}: {error}"}
    except ValueError:  # nobody knows the signature: it may be right
        pass
    return {}


def named(code: str):
    """What `module:name` names. Raises Absent."""
    module, _, name = code.partition(":")
    try:
        found = import_module(module)
    except BaseException as error:  # whatever somebody's own module does
        said = f"{type(error).__name__}: {error}".split("\n")[0]
        raise Absent(f"'{module}' cannot be imported: {said}") from None
    if not callable(getattr(found, name, None)):
        raise Absent(f"'{module}' has no '{name}'{meant(name, dir(found))}")
    return getattr(found, name)


def main() -> None:
    """Answer on the standard output that was there: what somebody's own module prints is none."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    workloads = json.load(sys.stdin)
    give_way()
    found = {name: mistake(workload) for name, workload in workloads.items()}
    with answer:
        json.dump({name: wrong for name, wrong in found.items() if wrong}, answer)


if __name__ == "__main__":
    main()
