"""Which optimizer's steps are the steps of a script that has several.

The first that steps counts. Another takes its place

- once the counted one is gone;
- after it: when others have made TAKEOVER_STEPS steps since its newest, or one of them MIN_STEPS
  while it has been silent for long. Steps made meanwhile are dated back: all, if one optimizer came
  after another (folds, trials, pretraining and then training); if they alternate, those of the one
  with the most;
- beside it: by stepping more than twice as often for long, as the critic of a GAN may.
"""

from __future__ import annotations  # a script's Python may be 3.8

import time
import weakref
from itertools import groupby

TAKEOVER_STEPS = 20
MIN_STEPS = 3
# Silent for long: for SILENT_NS, and for SILENT_GAPS times its usual time between two steps.
SILENT_NS = 5_000_000_000
SILENT_GAPS = 10
GAP_MEMORY = 8  # steps over which the usual time is averaged


class StepCounter:
    """Counts the steps of one optimizer; it is to be called after each step of any.

    hook: the module models/hook.py, which records steps.
    """

    def __init__(self, hook):
        self.hook = hook
        self.counted = None  # a weak reference to the optimizer that counts
        self.newest_ns = self.usual_gap_ns = 0  # of its steps, without time at the barrier
        self.leads: dict[int, int] = {}  # by id: its steps less twice the counted ones, at least 0
        self._forget_others()

    def _forget_others(self) -> None:
        """Start anew with the steps of others since the newest step of the counted optimizer."""
        self.others: list[tuple[int, int]] = []  # id of the optimizer, and when it stepped
        self.other_steps: dict[int, int] = {}  # by id
        self.most_steps = 0  # of one of them

    def __call__(self, optimizer, args=(), kwargs=None) -> None:
        now_ns = time.monotonic_ns()
        counted = self.counted and self.counted()
        if counted is optimizer:
            gap_ns = now_ns - self.newest_ns
            usual_gap_ns = self.usual_gap_ns or gap_ns
            self.usual_gap_ns = usual_gap_ns + (gap_ns - usual_gap_ns) // GAP_MEMORY
            if self.leads:
                self.leads = {key: lead - 2 for key, lead in self.leads.items() if lead > 2}
                self._forget_others()
            self._record()
            return
        key = id(optimizer)
        self.others.append((key, now_ns))
        self.other_steps[key] = self.other_steps.get(key, 0) + 1
        self.most_steps = max(self.most_steps, self.other_steps[key])
        self.leads[key] = self.leads.get(key, 0) + 1
        earlier_ns = None
        if counted is None or self._have_taken_over(now_ns):
            earlier_ns = self._earlier_steps(key)
        elif self.leads[key] >= TAKEOVER_STEPS:
            earlier_ns = []
        if earlier_ns is None:
            self.hook.step_of_other()
            self.newest_ns += time.monotonic_ns() - now_ns  # Time at the barrier is no silence.
            return
        self.counted, self.usual_gap_ns, self.leads = weakref.ref(optimizer), 0, {}
        self._forget_others()
        self.hook.set_optimizer(type(optimizer).__name__)
        self.hook.date_back(earlier_ns)
        self._record()

    def _record(self) -> None:
        self.hook.step(from_script=False)
        self.newest_ns = time.monotonic_ns()

    def _have_taken_over(self, now_ns: int) -> bool:
        """Whether others step in place of the counted optimizer."""
        silent_ns = now_ns - self.newest_ns
        is_silent = silent_ns > SILENT_NS and silent_ns > SILENT_GAPS * self.usual_gap_ns
        # One optimizer for each parameter: many steps, and few of each.
        return self.most_steps >= MIN_STEPS and (is_silent or len(self.others) >= TAKEOVER_STEPS)

    def _earlier_steps(self, key: int) -> list[int] | None:
        """When the steps that the newest one continues were made; None if it continues none.

        key: id of the optimizer that made the newest step.
        """
        before = self.others[:-1]
        turns = len(list(groupby(other for other, _ in self.others)))
        if turns == len(self.other_steps):  # one after another
            return [step_ns for _, step_ns in before]
        if self.other_steps[key] < self.most_steps:
            return None
        return [step_ns for other, step_ns in before if other == key]
