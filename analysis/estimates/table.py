"""Looking numbers up: what figures, pages, claims and advice see of estimates.parquet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import pandas as pd

from analysis.estimates import combined, ordered, schema
from analysis.estimates.schema import MEASURED, Estimate
from workflow.collocation.spec.names import Scenario, arm_order, method_order, parse_scenario


class Estimates:
    """All numbers of a study, by id and by what they are of."""

    def __init__(self, estimates: Iterable[Estimate]):
        self._by_id = {estimate.id: estimate for estimate in estimates}
        self._found: dict[tuple[str, str, bool], list[Estimate]] = defaultdict(list)
        self._on_hosts: dict[tuple, list[Estimate]] = defaultdict(list)
        for estimate in sorted(self._by_id.values(), key=place):
            for source in (estimate.source, "*"):
                self._found[estimate.quantity, source, bool(estimate.host)].append(estimate)
            if estimate.host:
                self._on_hosts[_anywhere(estimate)].append(estimate)

    @classmethod
    def read(cls, path: Path) -> Estimates:
        """Of an estimates.parquet. Raises OSError or ValueError where it is no such file."""
        return cls(schema.rows(path))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame."""
        rows = [vars(e) | {"replicates": [vars(r) for r in e.replicates]} for e in self]
        return ordered(combined([pd.DataFrame(rows)]))

    def __getitem__(self, identity: str) -> Estimate:
        """By id. Raises KeyError."""
        return self._by_id[identity]

    def __contains__(self, identity: object) -> bool:
        return identity in self._by_id

    def __iter__(self) -> Iterator[Estimate]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, quantity: str, **where: str) -> Estimate | None:
        """The number of exactly this place (scenario, arm, method, window, job, host, source,
        name; empty by default), or None.
        """
        return self._by_id.get(Estimate(quantity, **where).id)

    def of(self, quantity: str, **where: str) -> list[Estimate]:
        """All numbers of a quantity over all hosts whose fields are as given, in their order.

        By default measured ones over all hosts; host="*" gives those of single hosts, another "*"
        those with any value there.
        """
        host, source = where.get("host", ""), where.pop("source", MEASURED)
        wanted = {name: value for name, value in where.items() if value != "*"}
        return [
            e
            for e in self._found.get((quantity, source, bool(host)), ())
            if all(getattr(e, name) == value for name, value in wanted.items())
        ]

    def on_hosts(self, estimate: Estimate) -> list[Estimate]:
        """The same number host by host."""
        return list(self._on_hosts.get(_anywhere(estimate), ()))

    def hosts(self) -> list[str]:
        """Labels of the study's hosts, in the order in which they were first used."""
        found = {e.host for e in self.of("count", host="*", source="*")}
        return sorted(found, key=lambda host: int(host.removeprefix("h")))

    def hardware(self) -> list[str]:
        """Names of the GPUs (or CPUs) of the study's hosts, each once."""
        notes = (e.note for e in self.of("count", host="*", name="host_cells"))
        return list(dict.fromkeys(note.split(": ")[-1].split(";")[0] for note in notes))

    def arms(self) -> list[str]:
        """Ways in which the study's jobs are written."""
        return sorted({e.arm for e in self.of("outcome", source="*")}, key=arm_order)

    def workloads(self) -> list[str]:
        """Every workload of the study, those of mixes included, small scenarios first."""
        found: dict[str, None] = {}
        for outcome in self.of("outcome"):
            found |= dict.fromkeys(name for name, _ in parse_scenario(outcome.scenario).parts)
        return list(found)


# What a number is of, whichever host it was measured on.
_anywhere = attrgetter("quantity", "scenario", "arm", "method", "window", "job", "source", "name")


def place(estimate: Estimate) -> tuple:
    """Sort key: arm, mixes last, workload, variant, count, method, window, job, host."""
    scenario = parse_scenario(estimate.scenario) if estimate.scenario else Scenario("", (), "")
    return (
        arm_order(estimate.arm),
        scenario.mixed,
        scenario.family,
        scenario.variant,
        scenario.n,
        estimate.scenario,
        method_order(estimate.method),
        estimate.window,
        estimate.job,
        estimate.name,
        estimate.host,
    )
