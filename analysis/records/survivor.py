"""Fixed work: how fast the member that ends last trains once all others have ended."""

from __future__ import annotations

from analysis.records.safe import read_table
from workflow.collocation.record import step_times

FILE, COLUMN, BY = step_times.FILE, "samples_per_s_alone_after", "member"
LEAST = 10  # steps: fewer tell no rate


def read(record: dict) -> dict[int, float]:
    """Member → samples/s, of the one that has LEAST steps or more after the others' last one.

    Raises OSError, LookupError, TypeError or ValueError where the steps cannot be read.
    """
    members = step_times.read(read_table(record["folder"] / FILE))
    if len(members) < 2:
        return {}
    *_, (others_end, _), (end, last) = sorted((ns.max(), m) for m, (ns, _) in members.items())
    size = record["spec"]["members"][last]["batch_size"]
    found = step_times.rate(members[last][0], others_end + 1, end + 1, size)
    return {last: found.samples_per_s} if found.steps >= LEAST else {}
