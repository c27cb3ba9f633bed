"""The MIG layouts of a study's cells as JSON, for analysis to draw. Pure: touches no card."""

from collections.abc import Iterable

from workflow.collocation.methods import named
from workflow.collocation.methods.mig_layout import Card, Layout, NoLayout, layouts
from workflow.collocation.plan import Cell

SCHEMA_VERSION = 1


def document(study: str, cells: Iterable[Cell], card: Card, source: str, read: bool) -> dict:
    """Card and layouts; what is not known is null.

    source: where the card's table comes from; read: from the card that is here. A GPU instance
    lies at `start` and takes `size` of the card's memory slices; its `slices` are of SMs, and so
    are those of its compute instances, whose `members` are indices. Where it has several, their
    SMs are not known before they exist.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "card": {
            "name": card.name,
            "slices": card.slices,
            "memory_slices": card.memory_slices,
            "read": read,
            "source": source,
        },
        "cells": [_cell(cell, card) for cell in cells],
    }


def mig_cells(cells: Iterable[Cell]) -> list[Cell]:
    """The MIG cells among these, one of each scenario and method: ladders, then mixes, by size."""
    found = {(c.scenario, c.method): c for c in cells if named(c.method).parts}
    return sorted(
        found.values(),
        key=lambda cell: ("+" in cell.scenario, cell.n, cell.scenario, cell.method),
    )


def _cell(cell: Cell, card: Card) -> dict:
    """A cell's GPU instances, or the reason why there are none."""
    found = {"scenario": cell.scenario, "method": cell.method, "n": cell.n}
    try:
        layout = next(layouts(cell.spec, card))
    except NoLayout as reason:
        return found | {"layout": None, "reason": str(reason), "instances": []}
    instances = [_instance(layout, index) for index in range(len(layout.parts))]
    return found | {"layout": str(layout), "reason": None, "instances": instances}


def _instance(layout: Layout, index: int) -> dict:
    """A GPU instance with its compute instances."""
    part = layout.parts[index]
    profile = part.profile
    return {
        "profile": profile.name,
        "start": part.start,
        "size": part.size,
        "slices": profile.slices,
        "sm_count": profile.sm_count,
        "memory_mib": profile.memory_mib,
        "compute": [
            {
                "slices": slices,
                "sm_count": profile.sm_count if part.whole else None,
                "members": [m for m, seat in enumerate(layout.seats) if seat == (index, number)],
            }
            for number, slices in enumerate(part.compute)
        ],
    }
