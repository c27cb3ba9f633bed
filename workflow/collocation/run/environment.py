"""Environment variables of training processes: only those that are known to be harmless.

Many variables of a shell change a measurement without a trace (NVIDIA_TF32_OVERRIDE …), so none is
passed on unless it is named in study/variables.py.
"""

import os
import re

from workflow.collocation import ROOT
from workflow.collocation.study.variables import MAY_MATTER, SET_BY_STUDY, is_passed

# Variables by which a container image describes itself.
IMAGE_FACTS = re.compile(
    r"NVIDIA_REQUIRE_.*|.*_(VERSION|HOME|PATH|ROOT|DIR|LIST|ID|NAME|NUMBER|FLAGS)"
)


def server_environment() -> dict[str, str]:
    """The environment of a fork server, in which members can import this repository.

    Thread pools have one thread: OpenBLAS starts its threads on import, and they would not survive
    a fork. Members set their own number of threads.
    """
    passed = {name: value for name, value in os.environ.items() if is_passed(name)}
    path = os.pathsep.join(filter(None, [str(ROOT), passed.get("PYTHONPATH")]))
    return passed | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as nvidia-smi counts; the default is by speed
        "PYTHONPATH": path,
        "PYTHONUTF8": "1",  # logs and events are UTF-8, whatever the locale
        "PYTHONUNBUFFERED": "1",  # so that the last lines of a killed member reach its log
        "PYTHONFAULTHANDLER": "1",  # prints the stack of a member that crashes or gets SIGABRT
    }


def dropped() -> list[str]:
    """Names of variables that could change a measurement and are not passed to members."""
    names = []
    for name in os.environ:
        is_explained = SET_BY_STUDY.fullmatch(name) or IMAGE_FACTS.fullmatch(name)
        if MAY_MATTER.fullmatch(name) and not is_passed(name) and not is_explained:
            names.append(name)
    return sorted(names)
