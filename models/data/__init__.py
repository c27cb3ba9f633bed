"""Datasets: real where present, generated in the same file format where not.

`python -m models.data prepare NAME --root DATA` makes one ready; `open_dataset` reads it.

The data folder: `<name>/` is the user's (or downloaded) real data and is never written into;
`synthetic/<name>-<train>-seed<seed>/` is generated; `prepared/<name>-...` holds what
is derived from real data. A prepared folder has manifest.json and resident-<input size>/ caches.
"""

from collections.abc import Sequence
from pathlib import Path

from models.data.base import (
    MANIFEST,
    DataError,
    Dataset,
    make_once,
    read_manifest,
    size_and_fingerprint,
    write_json,
)
from models.data.criteo import Criteo
from models.data.images import Cifar10, Digits, ImageNet, ImageNet64
from models.data.speech import Speech
from models.data.text import Sources
from workflow.collocation.study.layout import DATA_FORMAT
from workflow.collocation.study.regular_files import read_json

DATASETS: dict[str, type[Dataset]] = {
    cls.name: cls for cls in (Cifar10, Digits, ImageNet64, ImageNet, Criteo, Sources, Speech)
}
# Keys of the manifest that are not in the published record of a dataset.
UNPUBLISHED = ("format_version", "location", "fingerprint")


def open_dataset(name: str, path: str | Path) -> Dataset:
    """The dataset prepared in folder `path`. Raises DataError (one line) where there is none."""
    folder = Path(path)
    if (manifest := read_manifest(name, folder)) is None:
        raise DataError(
            f"{name}: {folder} is not prepared; run `python -m models.data prepare {name}`"
        )
    return DATASETS[name](folder, manifest)


def prepare(
    name: str,
    root: Path,
    *,
    source: str = "auto",
    train: int | None = None,
    seed: int = 42,
    input_sizes: Sequence[int] = (),
    pin: Path | None = None,
) -> dict:
    """Make a dataset ready under the data folder `root`; returns its published record.

    source: "auto", "real" or "synthetic". train: how many samples to generate; real data are used
    completely. input_sizes: write caches of resident images of these sizes. pin: a file that fixes
    the source for a study; it is obeyed where it exists, and written where not. Safe to run twice,
    also at the same time. Raises DataError with one line.
    """
    cls, root = DATASETS[name], root.absolute()
    pinned = read_json(pin) if pin and pin.exists() else {}
    if pinned and source not in ("auto", pinned["source"]):
        raise DataError(
            f"source is {source!r} but {pin} pins {pinned['source']!r}; "
            f"set source: auto or {pinned['source']}, or remove the pin and its measured cells"
        )
    chosen, reason = _choose_source(
        cls, root, pinned.get("source", source), pin if pinned else None
    )
    reason = pinned.get("reason", reason)
    real = root / name if chosen == "real" and not cls.bundled else None
    real_bytes, fingerprint = size_and_fingerprint(real) if real else (None, None)
    size = train or cls.generated_size
    manifest = {
        "dataset": name,
        "nominal_train_size": cls.nominal,
        "format_version": DATA_FORMAT,
        "source": chosen,
        "reason": reason,
        "seed": seed,
        "location": f"../../{name}" if real else ".",
        "fingerprint": fingerprint,
    }
    target = root / "synthetic" / f"{name}-{size}-seed{seed}"
    if chosen == "real":
        target = root / "prepared" / f"{name}-seed{seed}"

    def is_current() -> bool:
        present = read_manifest(name, target)
        return present is not None and present["fingerprint"] == fingerprint

    def write(folder: Path) -> None:
        if not real:
            cls.generate(folder, size, seed)
        counts = cls(folder, manifest).count()
        counts["bytes"] = real_bytes if real else size_and_fingerprint(folder)[0]
        write_json(folder / MANIFEST, manifest | counts)

    make_once(target, is_current, write)
    dataset = open_dataset(name, target)
    for input_size in input_sizes:
        dataset.prepare_resident(input_size)
    record = {key: entry for key, entry in dataset.manifest.items() if key not in UNPUBLISHED}
    record["reason"] = reason
    if pin and not pinned:
        write_json(pin, record)
    return {**record, "path": str(target)}


def _choose_source(
    cls: type[Dataset], root: Path, source: str, pin: Path | None
) -> tuple[str, str]:
    """("real" or "synthetic", the reason in one line)."""
    if cls.bundled:
        if source == "synthetic":
            raise DataError("is always real; set source: auto or real")
        return "real", cls.bundled
    if source == "synthetic":
        return source, "generated, as source is 'synthetic'"
    if cls.may_be_real and (root / cls.name).is_dir():
        return "real", "found in the data folder"
    if source == "real":
        ways = f"remove {pin}" if pin else "set source: auto or synthetic"
        raise DataError(f"there is no {root / cls.name}; put the published files there, or {ways}")
    return "synthetic", f"generated, as there is no {cls.name}/ in the data folder"
