"""Counts the steps of an unchanged training script by its optimizer.

Python imports a module of this name when it starts. The study puts this folder first on the
script's PYTHONPATH, so that its processes get it, and those that they start. models/step_counter.py
is called after each step of any optimizer of torch, of fastai, and of Keras on torch. This module
draws no random number, imports nothing heavy, and runs the `sitecustomize` that it hides.
"""

import functools
import importlib.machinery
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path


def _load_file(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ImportHook:
    """Calls functions with modules that have just been imported. by_module: these functions."""

    def __init__(self, by_module: dict):
        self.by_module = by_module

    def find_spec(self, name, path=None, target=None):
        if name not in self.by_module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            with suppress(AttributeError):  # in a version of the library that is not known
                self.by_module[name](module)

        spec.loader.exec_module = exec_module
        return spec


def count_torch(module) -> None:
    # torch before 2.0 has no such hook; there, only the script itself can report steps.
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register:
        register(counter)
    hook.report(hook.TORCH)


def count_calls(owner: type, name: str) -> None:
    """Have this method of an optimizer call the counter."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def step(self, *args, **kwargs):
        returned = method(self, *args, **kwargs)
        counter(self)
        return returned

    setattr(owner, name, step)


def count_fastai(module) -> None:
    count_calls(module.Optimizer, "step")


def count_keras(module) -> None:
    if module.backend.backend() == "torch":  # Others compile the step, and call this only once.
        count_calls(module.BaseOptimizer, "apply")


def report_library(module) -> None:
    hook.report(hook.LIBRARY << hook.LIBRARIES.index(module.__name__))


def _run_hidden_sitecustomize(folder: Path) -> None:
    """Run the sitecustomize of the script's own environment, as distributions and conda have."""
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_folder = Path(__file__).resolve().parent
if "COLLOCATION_HOOK" in os.environ:
    hook = _load_file("_collocation_hook", _folder.parent / "hook.py")
    hook.report(hook.PYTHON)
    step_counter = _load_file("_collocation_step_counter", _folder.parent / "step_counter.py")
    counter = step_counter.StepCounter(hook)
    on_import = dict.fromkeys(hook.LIBRARIES, report_library)
    on_import["torch.optim.optimizer"] = count_torch
    on_import["fastai.optimizer"] = count_fastai
    on_import["keras.src.optimizers.base_optimizer"] = count_keras
    sys.meta_path.insert(0, ImportHook(on_import))
_run_hidden_sitecustomize(_folder)
