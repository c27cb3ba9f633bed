"""What members find in their environment: where things are on this machine, and little else.

Much of what a shell may hold changes a measurement without a trace (NVIDIA_TF32_OVERRIDE …). So
nothing is passed that is not named here; `account` tells what was dropped that would have counted.
"""

import os
import re

from workflow.collocation import ROOT
from workflow.collocation.spec.variables import OF_THE_STUDY, TELLING, passes

# What an image says of itself.
FACTS = re.compile(r"NVIDIA_REQUIRE_.*|.*_(VERSION|HOME|PATH|ROOT|DIR|LIST|ID|NAME|NUMBER|FLAGS)")
WORDS = re.compile(r"[a-z\d,]{1,99}")  # a value that is no path and names nobody


def server_environment() -> dict[str, str]:
    """What a fork server and its members find, with the repository importable and one thread:
    members set their own number.

    OpenBLAS starts its threads on import, and they would not survive the fork.
    """
    kept = {name: value for name, value in os.environ.items() if passes(name)}
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


def account() -> dict:
    """Of the settings in our environment, for a record: those passed, with values that are plain
    words and null otherwise, and the names of those dropped.
    """
    found = sorted(name for name in os.environ if TELLING.fullmatch(name))
    passed = {name: os.environ[name] for name in found if passes(name)}
    dropped = [name for name in found if name not in passed]
    beside = (OF_THE_STUDY, FACTS)
    return {
        "passed": {n: value if WORDS.fullmatch(value) else None for n, value in passed.items()},
        "dropped": [n for n in dropped if not any(each.fullmatch(n) for each in beside)],
    }
