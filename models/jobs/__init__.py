"""The kinds of job: vision, dlrm, command, and a class of one's own (see base.py)."""

from models.jobs import command, dlrm, vision  # noqa: F401  (they register themselves)
