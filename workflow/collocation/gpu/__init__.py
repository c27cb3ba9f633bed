"""The GPUs that a study uses: `find_devices`, then ask the Device. Everything here only reads."""

import importlib.util
import re
from pathlib import Path

from workflow.collocation.gpu.nvidia import Device, failing_cards, find
from workflow.collocation.study.errors import ConfigError

__all__ = ["Device", "find", "find_devices", "torch_build"]


def find_devices(wanted: str | int) -> tuple[list[Device], str]:
    """The GPUs of this machine that config's `gpu` names, and a sentence: why there are none, or
    which cards fail.

    Called when cells are planned, and by each job where it runs. Raises ConfigError; DriverError
    where the driver fails.
    """
    if wanted == "cpu":
        return [], "gpu: cpu"
    devices = find(wanted)
    if not devices:
        return [], "no CUDA machine"
    if torch_build() == "cpu":
        if wanted != "auto":
            raise ConfigError(
                f"gpu: {wanted!r} was asked for, but the installed torch is a CPU build; "
                "allowed: cpu, auto"
            )
        return [], "the installed torch is a CPU build"
    return devices, failing_cards()


def torch_build() -> str | None:
    """What the installed torch was built for: "cuda", "cpu", or None where there is no torch.

    Read from its version file, because importing it would take seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    return "cuda" if re.search(r"^cuda\b.*=\s*['\"]", text, re.M) else "cpu"
