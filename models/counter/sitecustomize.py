"""Counts the steps of a script that is left as it is: each step of its first optimizer is one.

Python imports a module of this name when it starts. The study puts this folder first on the
script's PYTHONPATH, so that its own processes get it, and those that they start. torch calls the
hook below after each step of any optimizer. This module draws no random number, imports nothing
heavy, and runs the `sitecustomize` that it hides.
"""

import importlib.machinery
import importlib.util
import os
import sys
import weakref
from pathlib import Path

MODULE = "torch.optim.optimizer"
PHASE = 20  # more than the critics' steps that a GAN makes for one of its generator


def _file(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Finder:
    """Has torch tell of each optimizer's steps, as soon as it has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                # Before torch 2.0 there is none: then only the script itself can tell.
                if register := getattr(module, "register_optimizer_step_post_hook", None):
                    register(Counter())
                hook.reached(hook.TORCH)

            spec.loader.exec_module = exec_module
        return spec


class Counter:
    """One optimizer counts: the first that steps. Once it is gone, or another has made PHASE steps
    since its last, as in a second phase of training, the other does.
    """

    def __init__(self):
        self.counted, self.others = None, {}  # steps of others, by id, since its last

    def __call__(self, optimizer, args, kwargs) -> None:
        counted = self.counted and self.counted()
        if counted is not None and counted is not optimizer:
            made = self.others[id(optimizer)] = self.others.get(id(optimizer), 0) + 1
            if made < PHASE:
                return
        if counted is not optimizer:
            self.counted = weakref.ref(optimizer)
            hook.found["optimizer"] = type(optimizer).__name__
        self.others.clear()
        hook.step(own=False)


def _run_hidden(here: Path) -> None:
    """The sitecustomize of the script's own environment, of a distribution or of conda."""
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_here = Path(__file__).resolve().parent
if "COLLOCATION_HOOK" in os.environ:
    hook = _file("_collocation_hook", _here.parent / "hook.py")
    hook.reached(hook.PYTHON)
    sys.meta_path.insert(0, Finder())
_run_hidden(_here)
