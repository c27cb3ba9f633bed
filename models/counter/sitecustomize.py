"""Counts the steps of an unchanged training script: every step of its first optimizer is one.

Python imports a module of this name when it starts. The study puts this folder first on the
script's PYTHONPATH, so that its processes get it, and those that they start. torch calls the
counter below after each step of any optimizer. This module draws no random number, imports nothing
heavy, and runs the `sitecustomize` that it hides.
"""

import importlib.machinery
import importlib.util
import os
import sys
import weakref
from pathlib import Path

OPTIMIZER_MODULE = "torch.optim.optimizer"
# Steps of another optimizer that make it the counted one: more than a GAN's critic makes for each
# step of the generator.
TAKEOVER_STEPS = 20


def _load_file(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class OptimizerImportHook:
    """Registers the counter with torch's optimizers as soon as their module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != OPTIMIZER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            # torch before 2.0 has no such hook; there, only the script itself can report steps.
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register:
                register(StepCounter())
            hook.report_stage(hook.TORCH)

        spec.loader.exec_module = exec_module
        return spec


class StepCounter:
    """Counts the steps of one optimizer, the first that steps.

    Another one takes its place once it is deleted, or once the other has made TAKEOVER_STEPS since
    its last step, as in a second phase of training.
    """

    def __init__(self):
        self.counted = None  # a weak reference to the optimizer
        self.other_steps: dict[int, int] = {}  # by id of the optimizer, since the last counted step

    def __call__(self, optimizer, args, kwargs) -> None:
        counted = self.counted and self.counted()
        if counted is not None and counted is not optimizer:
            steps = self.other_steps.get(id(optimizer), 0) + 1
            self.other_steps[id(optimizer)] = steps
            if steps < TAKEOVER_STEPS:
                return
        if counted is not optimizer:
            self.counted = weakref.ref(optimizer)
            hook.optimizer_facts["optimizer"] = type(optimizer).__name__
        self.other_steps.clear()
        hook.step(from_script=False)


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
    hook.report_stage(hook.PYTHON)
    sys.meta_path.insert(0, OptimizerImportHook())
_run_hidden_sitecustomize(_folder)
