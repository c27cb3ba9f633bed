"""The tables of advice: what to run of each job, and which options there are."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from analysis import labels
from analysis.advice import Advice, Option
from analysis.pages import spelling as as_
from analysis.pages.tables import Number
from workflow.collocation.spec.names import CONTROL_ARMS, arm_order


def _numbers(option: Option) -> dict[str, Number]:
    return {
        "samples/s": Number(option.rate, as_.bare),
        "STP": Number(option.stp, as_.span),
        "S": Number(option.s),
        "over fastest": Number(option.over_fastest),
        "slowest takes": Number(option.slowdown),
        "memory": Number(option.memory),
    }


def _named(advice: Advice) -> dict[str, str]:
    return {"job": labels.job(advice.job), "written": labels.arm(advice.arm)}


def by_gain(found: Iterable[Advice]) -> list[Advice]:
    """Jobs as in the paper first, and of these the highest gain."""
    found = sorted(found, key=lambda each: -each.knee.stp.value if each.knee else 0.0)
    return sorted(found, key=lambda each: arm_order(each.arm))


def foremost(found: Iterable[Advice]) -> list[Advice]:
    """Of each job that was measured in sets, the way of writing whose advised option does the most;
    the highest gain first.
    """

    def does(advice: Advice) -> tuple[bool, float, float]:
        rate = advice.knee.rate
        known = rate.value if rate else 0.0
        return advice.arm not in CONTROL_ARMS, known, advice.knee.stp.value

    best: dict[str, Advice] = {}
    for each in (each for each in found if each.sets and each.knee):
        best[each.job] = max(best.get(each.job, each), each, key=does)
    return sorted(best.values(), key=lambda each: -each.knee.stp.value)


def knee(found: Iterable[Advice], job: str, arm: str) -> Option:
    """The option that is advised for a job written in one way."""
    return next(each.knee for each in found if (each.job, each.arm) == (job, arm))


def summary(found: Iterable[Advice]) -> pd.DataFrame:
    """What to run of each job that was measured in sets, on one line."""
    return pd.DataFrame(
        [
            _named(each)
            | {"run": each.knee.label}
            | _numbers(each.knee)
            | {"measured in": Number(each.knee.stp, as_.how_many)}
            for each in found
            if each.knee and each.sets
        ]
    )


def alone_only(found: Iterable[Advice]) -> str:
    """Jobs of which no copies were measured together, by name."""
    names = (", ".join(_named(each).values()) for each in found if not each.sets)
    return "; ".join(dict.fromkeys(names))


def options(advice: Advice) -> pd.DataFrame:
    """The options that no other beats in throughput, slowdown and memory together."""
    return pd.DataFrame(
        [{"run": option.label, "": _chosen(advice, option)} | _numbers(option)
         for option in advice.pareto]
    )  # fmt: skip


def everything(found: Iterable[Advice]) -> pd.DataFrame:
    """Every measured option of every job."""
    return pd.DataFrame(
        [
            {"job": each.job, "written": each.arm, "run": option.label, "jobs": option.n}
            | {"method": option.method, "pareto": "yes" if option in each.pareto else ""}
            | {"chosen": _chosen(each, option)}
            | _numbers(option)
            for each in found
            for option in each.options
        ]
    )


def _chosen(advice: Advice, option: Option) -> str:
    """`advised`, `best` (the most throughput), both or neither."""
    return ", ".join(
        ["advised"] * (option == advice.knee) + ["most throughput"] * (option == advice.best)
    )
