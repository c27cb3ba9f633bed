"""What members find in their environment: where things are on this machine, and little else.

Much of what a shell may hold changes a measurement without a trace (NVIDIA_TF32_OVERRIDE …). So
nothing is passed that is not named here; `dropped` tells what would have counted.
"""

import os
import re

from workflow.collocation import ROOT
from workflow.collocation.study.variables import MAY_MATTER, SET_BY_STUDY, is_passed

# What an image says of itself.
FACTS = re.compile(r"NVIDIA_REQUIRE_.*|.*_(VERSION|HOME|PATH|ROOT|DIR|LIST|ID|NAME|NUMBER|FLAGS)")


def server_environment() -> dict[str, str]:
    """What a fork server and its members find, with the repository importable and one thread:
    members set their own number.

    OpenBLAS starts its threads on import, and they would not survive the fork.
    """
    kept = {name: value for name, value in os.environ.items() if is_passed(name)}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return kept | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts; the default is by speed
        "PYTHONPATH": path,
        "PYTHONUTF8": "1",  # logs and events are UTF-8, whatever the locale
        "PYTHONUNBUFFERED": "1",  # a killed member's last words reach its log
        "PYTHONFAULTHANDLER": "1",  # and the stack of one that crashes or gets SIGABRT
    }


def dropped() -> list[str]:
    """Names of the settings in our environment that members do not find."""
    beside = (SET_BY_STUDY, FACTS)
    found = (name for name in os.environ if MAY_MATTER.fullmatch(name) and not is_passed(name))
    return sorted(name for name in found if not any(each.fullmatch(name) for each in beside))
