"""Cells as TensorBoard's event files, each in a folder of its own, by the cell's clock."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from analysis.export import SERIES, Cell
from analysis.files import whole


def write(cells: list[Cell], folder: Path, to: str) -> tuple[int, str]:
    """Those that have no file yet; how many, and where. Raises OSError."""
    folder, new = folder / f"{to}", 0
    for cell in cells:
        path = folder / cell.whole.name / f"events.out.tfevents.{cell.began:.0f}"
        if path.exists():
            continue
        with whole(path) as partial, partial.open("wb") as file:
            for event in _events(cell):
                RecordWriter(file).write(event.SerializeToString())
        new += 1
    return new, f"tensorboard --logdir {folder}"


def _events(cell: Cell) -> Iterator[Event]:
    """Readings, of which a step is the milliseconds since the first; what the cell came to."""
    yield Event(wall_time=cell.began, file_version="brain.Event:2")
    yield Event(wall_time=cell.began, summary=hparams_pb(cell.whole.params))
    for run, prefix in ((cell.whole, "system"), *((job, job.name) for job in cell.jobs)):
        for row in run.readings.to_dict("records"):
            step = round(1000 * (row["at"] - run.readings["at"].iloc[0]))
            values = _summary(prefix, {name: row[name] for name in SERIES})
            yield Event(wall_time=row["at"], step=step, summary=values)
        own = "set" if run is cell.whole else prefix
        yield Event(wall_time=cell.ended, summary=_summary(own, run.metrics))


def _summary(prefix: str, numbers: Mapping[str, float]) -> Summary:
    known = {name: value for name, value in numbers.items() if value == value}  # NaN: not read
    return Summary(
        value=[Summary.Value(tag=f"{prefix}/{n}", simple_value=v) for n, v in known.items()]
    )
