"""What figures write can be read: it is in the picture, large enough, and hides nothing."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from analysis.cells import load
from analysis.figures import decomposition, epoch_time, marks, scaling, throughput_gain
from tests.records import merged, record, telemetry

A, B = "resnet26_a", "resnet50_b"
TOLD = "95 % intervals wider than a factor of 4 are not drawn"


@pytest.fixture
def axes():
    figure = plt.figure(figsize=(4, 1))
    ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
    ax.set(xlim=(0, 100), ylim=(0, 10))
    yield ax
    plt.close("all")


def drawn(module, study):
    """A figure as it is on the page."""
    figure, _ = module.draw(study, "faithful")
    figure.draw_without_rendering()
    return figure


def overlapping(texts):
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    boxes = [(said, box.padded(-1)) for said, box in boxes if said]
    return [(one, two) for (one, a), (two, b) in combinations(boxes, 2) if a.overlaps(b)]


def blocks(scenario, method, rates, **more):
    """A replicate for each tuple of rates."""
    return [record(scenario, method, i, list(each), **more) for i, each in enumerate(rates, 1)]


# Two replicates that agree have a short interval, and two that do not one that is not drawn.
ALIKE, APART = (1.1, 1.15), (0.3, 0.9)


def ladder(name, counts=(2, 7), methods=("naive", "mps", "mps_equal")):
    found = blocks(f"1x_{name}", "naive", [(1000.0,), (1000.0,)])
    for method in methods:
        for n in counts:
            found += blocks(f"{n}x_{name}", method, [(p * 1000.0,) * n for p in ALIKE], drift=0.2)
    return found


def test_text_stands_above_text_that_it_would_hide(axes):
    for x in (20, 22, 24, 60):
        marks.above(axes, (x, 1), "*~\n10.5", 5.0)
    axes.figure.draw_without_rendering()
    assert not overlapping(axes.texts)
    low = [text.get_window_extent().y0 for text in axes.texts]
    assert low[0] < low[1] < low[2] and low[3] == pytest.approx(low[0])
    for _ in range(9):  # no text in the title or beyond, and none is lost
        marks.above(axes, (20, 1), "*~\n10.5", 5.0)
    top = max(text.get_window_extent().y1 for text in axes.texts)
    assert top < axes.bbox.y1 + 10 and len(axes.texts) == 13


def test_names_stand_where_there_is_room_or_not_at_all(axes):
    for _ in range(3):
        marks.beside(axes, (50, 5), "name", 5.0, (marks.LEFT, marks.RIGHT))
    marks.beside(axes, (1, 5), "at the edge", 5.0, (marks.LEFT,))
    left, right = (text.get_window_extent() for text in axes.texts)
    assert left.x1 < axes.transData.transform((50, 5))[0] < right.x0


def test_intervals_without_a_line_are_told():
    assert marks.left_out([(1.0, 3.9), (None, None), (float("nan"),) * 2]) == ""
    assert marks.left_out([(1.0, 3.9), (1.0, 4.1)]) == TOLD


def test_all_of_a_gain_is_within_its_axes():
    """Intervals that are drawn, and the signs beyond them or where none is drawn."""
    records = ladder(A) + blocks(f"1x_{B}", "naive", [(500.0,)] * 2)
    for n, parts in ((1, APART), (2, ALIKE)):
        rates = [(p * 1000.0,) * n + (p * 500.0,) for p in parts]
        records += blocks(f"{n}x_{A}+1x_{B}", "mps", rates, drift=0.2)
    figure = drawn(throughput_gain, load(merged(*records)))
    assert TOLD in " ".join(" ".join(text.get_text() for text in figure.texts).split())
    for ax in figure.axes:
        frame = ax.get_window_extent()
        signs = [text for text in ax.texts if "~" in text.get_text()]
        assert signs and not overlapping(signs)
        for text in signs:
            box = text.get_window_extent()
            assert box.x1 <= frame.x1 + 1 and box.y1 <= frame.y1 + 1
        for line in ax.lines:
            if line.get_linewidth() == 0.9:
                ends = line.get_path().transformed(line.get_transform()).vertices
                assert (np.nanmax(ends, axis=0) <= (frame.x1, frame.y1)).all()


def test_epoch_times_and_what_stands_below_them_can_be_read():
    records = ladder(A, (2, 3, 5, 7), ("naive", "mps", "mps_equal", "mps_overlap", "mig_mps"))
    for variant in ("allcores", "epochs", "files"):
        records += [record(f"1x_{A}--{variant}", rates=[900.0])]
    figure = drawn(epoch_time, load(merged(*records)))
    (ax,) = figure.axes
    assert min(text.get_fontsize() for text in ax.texts) >= 4.99
    assert not overlapping(ax.get_xticklabels())
    assert not overlapping(ax.texts)


@pytest.fixture(scope="module")
def apart():
    """Sets under MPS of which nothing agrees, and many that are predicted badly."""
    seen, records = telemetry(card={"gract": 0.9, "smact": 0.9}), []
    for i in range(6):
        name = f"resnet26_{chr(97 + i)}"
        records += blocks(f"1x_{name}", "naive", [(1000.0,)] * 2, telemetry=seen)
        for method in ("naive", "mps"):
            for n in (2, 3):
                rates = [(p * (1 + 0.01 * i) * 1000.0,) * n for p in APART]
                records += blocks(f"{n}x_{name}", method, rates, telemetry=seen)
    return load(merged(*records))


def test_predictions_are_named_where_that_hides_nothing(apart):
    figure = drawn(scaling, apart)
    assert TOLD in " ".join(" ".join(text.get_text() for text in figure.texts).split())
    gains = [ax for ax in figure.axes if "predicted" in ax.get_xlabel()]
    assert gains
    for ax in gains:
        assert len(ax.texts) > 1 and not overlapping(ax.texts)
        uprights = [y for x, y in (line.get_data() for line in ax.lines) if x[0] == x[-1]]
        spans = [max(y) / min(y) for y in uprights if min(y) > 0]
        assert spans and max(spans) <= 4  # of replicates: no interval's
        boxes = [text.get_window_extent().padded(-1) for text in ax.texts]
        for line in ax.lines:
            if line.get_marker() == "s":
                points = line.get_path().transformed(line.get_transform()).vertices
                assert not any(box.contains(*point) for box in boxes for point in points)


def test_the_decompositions_axis_ends_where_something_is_drawn(apart):
    figure = drawn(decomposition, apart)
    assert TOLD in " ".join(" ".join(text.get_text() for text in figure.texts).split())
    assert figure.axes[0].get_xlim()[1] < 4


def test_the_decomposition_says_where_it_has_fewer_blocks_than_mps():
    seen = {"telemetry": telemetry(card={"gract": 0.9, "smact": 0.9})}
    records = blocks(f"1x_{A}", "naive", [(1000.0,)] * 2, **seen)
    records += blocks(f"2x_{A}", "mps", [(600.0,) * 2] * 2, **seen)
    records += blocks(f"2x_{A}", "naive", [(500.0,) * 2] * 2, **seen)
    for found, told in ((records, False), (records[:-1], True)):
        said = " ".join(
            text.get_text() for text in drawn(decomposition, load(merged(*found))).texts
        )
        assert ("blocks that have naive, MPS and alone" in " ".join(said.split())) == told
