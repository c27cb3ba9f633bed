"""Which device a run is on: asked when cells are planned, and by each job where it runs."""

from workflow.collocation import gpu
from workflow.collocation.errors import ConfigError


def find_device(wanted: str | int) -> tuple[gpu.Device | None, str]:
    """The GPU that config's `gpu` names here, or None and why. Raises ConfigError."""
    if wanted == "cpu":
        return None, "gpu: cpu"
    device = gpu.find(wanted)
    if device is None:
        return None, "no CUDA machine"
    if gpu.torch_build() == "cpu":
        if wanted != "auto":
            raise ConfigError(
                f"gpu: {wanted!r} was asked for, but the installed torch is a CPU build; "
                "allowed: cpu, auto"
            )
        return None, "the installed torch is a CPU build"
    return device, ""
