"""The kinds of job: vision, dlrm, and anybody's own as `module:Class` (see base.py)."""

from models.jobs import dlrm, vision  # noqa: F401  (they register themselves)
