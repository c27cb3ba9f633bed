"""One collocated run at a time: planned, carried out on a locked GPU, recorded."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the repository
