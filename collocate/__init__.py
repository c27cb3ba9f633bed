"""The command `collocate`: one module for each subcommand.

It imports every other room and nobody imports it. Only here it is known how a person types: the
rooms below name keys of files, never options.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the clone
if str(ROOT) not in sys.path:  # an installed command is told where this package is, and no other
    sys.path.insert(0, str(ROOT))
