"""A two-way layout with holes: value = cell + block + rest, fitted by least squares.

Which part of the squares is whose: of the rest of several groups of values, and of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROUNDING = 1e-6
# A group's squares hold a part of the others' rest, by the block effects that all of them fit.
# Where less than this is left of the equations' determinant, the groups cannot be told apart.
SEPARABLE = 0.3


@dataclass(frozen=True)
class Layout:
    """What `fit` found. `left`: the projection of values to their rest; `weights`: to `effects`,
    which are of the blocks; `component`: blocks of different ones have no cell in common, so
    effects are from the mean of their component.
    """

    rest: np.ndarray
    left: np.ndarray
    effects: np.ndarray
    weights: np.ndarray
    component: np.ndarray


def fit(values: np.ndarray, cell: np.ndarray, block: np.ndarray) -> Layout:
    """`cell`, `block`: for each value its number, from 0."""
    cells, blocks = np.eye(cell.max() + 1)[cell], np.eye(block.max() + 1)[block]
    design = np.hstack([cells, blocks])
    left = np.eye(len(values)) - design @ np.linalg.pinv(design, rcond=ROUNDING)
    within = blocks - cells @ (cells.T @ blocks / cells.sum(axis=0)[:, None])
    laplacian = within.T @ within
    inverse = np.linalg.pinv(laplacian, rcond=ROUNDING, hermitian=True)
    weights = inverse @ within.T
    joined = np.eye(len(laplacian)) - inverse @ laplacian > ROUNDING
    component = joined.argmax(axis=1)  # the first block of it
    return Layout(left @ values, left, weights @ values, weights, component)


def freedom(layout: Layout, group: np.ndarray) -> float:
    """Degrees of freedom of the values in a group (a mask): Σ (1 − leverage)."""
    return float(np.diag(layout.left)[group].sum())


def variances(layout: Layout, groups: list[np.ndarray]) -> list[float | None]:
    """Of each group (a mask) the variance of its rest, unbiased whatever that of the others is.

    E[Σ rest²] of a group is Σ over its values i and all j of left_ij² σ²_j, which is solved for the
    groups' σ². One variance for all where that tells them not apart. None of a group with less than
    one degree of freedom, whose σ² is taken to be that of the group that it is seen in. May be
    below 0, as differences may.
    """
    known = [at for at, group in enumerate(groups) if freedom(layout, group) > 1 - ROUNDING]
    found: list[float | None] = [None] * len(groups)
    if not known:
        return found
    members = np.array([groups[at] for at in known], float)
    df, squares = members @ np.diag(layout.left), members @ layout.rest**2
    share = members @ layout.left**2 @ members.T / df[:, None]
    np.fill_diagonal(share, 0.0)
    np.fill_diagonal(share, 1.0 - share.sum(axis=1))
    if np.linalg.det(share) >= SEPARABLE:
        solved = np.linalg.solve(share, squares / df)
    else:
        solved = np.full(len(known), squares.sum() / df.sum())
    for at, variance in zip(known, solved, strict=True):
        found[at] = float(variance)
    return found


def between(layout: Layout, noise: np.ndarray) -> tuple[int, float | None, float | None]:
    """Degrees of freedom, variance and widest difference of the block effects.

    The variance is without what the rest makes of them; `noise`: the rest's variance, of each
    value. None where no two blocks have a cell in common.
    """
    component = layout.component
    df = len(component) - len(set(component))
    if df == 0:
        return 0, None, None
    squares = float(layout.effects @ layout.effects)
    by_chance = float(((layout.weights**2) @ noise).sum())
    spans = [np.ptp(layout.effects[component == one]) for one in set(component)]
    return df, (squares - by_chance) / df, float(max(spans))
