"""nvidia-ml-py on a machine without a GPU: the real module, with the functions of tests/fakes.

Put this folder first on PYTHONPATH. The cards are those of tests/fakes/driver.py.
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
from tests.fakes import driver  # noqa: E402

driver.install(sys.modules[__name__], driver.folders(os.environ))
