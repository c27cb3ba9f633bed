"""nvidia-ml-py on a machine without a GPU: the real module, with a stand-in for NVIDIA's library.

Put this folder first on PYTHONPATH. Constants, structs, errors and every wrapper are the real
module's own; what they call is tests/fakes/driver.py, on the card in the folder named by
COLLOCATION_FAKE_NVML, or tests/fakes/host.py, if it names several.
"""

import importlib.machinery
import os
import sys
from pathlib import Path

_here = Path(__file__).parent.resolve()
_elsewhere = [folder for folder in sys.path if Path(folder or ".").resolve() != _here]
_real = importlib.machinery.PathFinder.find_spec(__name__, _elsewhere).loader
exec(_real.get_code(__name__))  # the real one loads no library on import

sys.path.append(str(_here.parents[2]))
from tests.fakes.host import library  # noqa: E402

# Where the real module keeps the loaded library.
nvmlLib = library(os.environ)
