"""Make a dataset ready: settle its source, build its folder once, record what was used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models.data.base import FORMAT_VERSION, MANIFEST, Dataset, read_manifest
from models.data.storage import (
    DataError,
    folder_bytes,
    locked,
    new_folder,
    read_json,
    write_json,
)

SOURCES = ("auto", "real", "synthetic")
# What the manifest says beyond the published record of a dataset.
PRIVATE = ("format_version", "files", "fingerprint", "folder_bytes")
OWN_FILES = (MANIFEST, "resident-", ".resident-")  # not part of a folder's dataset


def prepare(
    cls: type[Dataset],
    root: Path,
    *,
    source: str = "auto",
    train: int | None = None,
    validation: int | None = None,
    seed: int = 42,
    input_sizes: Sequence[int] = (),
    pin: Path | None = None,
) -> dict[str, Any]:
    """Make `cls` ready under the data folder `root`; returns its record (see the manifest).

    `train` and `validation` are samples to generate, or the most rows to read of Criteo; real
    image sets are taken whole. A `pin` file fixes the source: obeyed where it exists, written
    where not. Safe to run twice, also at once. Raises DataError with one line.
    """
    root = root.absolute()
    while True:
        pinned = _read_pin(cls, pin)
        chosen, reason = _resolve(cls, root, source, pin, pinned)
        if chosen == "real":
            folder = _prepare_real(cls, root, train, validation, seed, reason)
        else:
            folder = _prepare_synthetic(cls, root, train, validation, seed, reason)
        manifest = read_manifest(cls.name, folder)
        dataset = cls(folder, manifest)
        for size in input_sizes:
            if size:  # 0: a dataset without images
                dataset.prepare_resident(size)
        record = {key: value for key, value in manifest.items() if key not in PRIVATE}
        record["reason"] = reason
        # A pin that another process wrote meanwhile decides: then resolve again, by it.
        if pin is None or pinned or write_json(pin, record, replace=False):
            return {**record, "path": str(folder)}


def _read_pin(cls: type[Dataset], pin: Path | None) -> dict[str, Any] | None:
    if pin is None or not pin.exists():
        return None
    value = read_json(pin)
    if value.get("dataset") != cls.name or value.get("source") not in SOURCES[1:]:
        raise DataError(f"{pin} does not pin {cls.name} to 'real' or 'synthetic'; remove it")
    return value


def _resolve(
    cls: type[Dataset], root: Path, source: str, pin: Path | None, pinned: dict[str, Any] | None
) -> tuple[str, str]:
    """("real" or "synthetic", the reason in one line)."""
    who = f"source is {source!r}"
    if pinned:
        if source not in ("auto", pinned["source"]):
            raise DataError(
                f"source is {source!r} but {pin} pins {pinned['source']!r}; "
                f"set source: auto or {pinned['source']}, or remove the pin and its measured cells"
            )
        source, who = pinned["source"], f"{pin} pins 'real'"
    if source == "synthetic":
        if not cls.can_generate:
            raise DataError("is always real and ships with a dependency; set source: auto or real")
        return source, pinned["reason"] if pinned else "generated, as source is 'synthetic'"
    real = cls.find_real(root)
    if real is not None:
        return "real", pinned["reason"] if pinned else cls.origin
    failure = cls.download(root)
    if failure is None:
        return "real", pinned["reason"] if pinned else "downloaded"
    if source == "real":
        ways = "remove the pin" if pinned else "set source: auto or synthetic"
        raise DataError(
            f"{who} but {root / cls.name} {cls.lacks} and it {failure}; {cls.how_to_get}, or {ways}"
        )
    return "synthetic", f"generated, as {cls.name}/ {cls.lacks} and it {failure}"


def _prepare_synthetic(
    cls: type[Dataset],
    root: Path,
    train: int | None,
    validation: int | None,
    seed: int,
    reason: str,
) -> Path:
    train, validation = train or cls.generated_size[0], validation or cls.generated_size[1]
    target = root / "synthetic" / f"{cls.name}-{train}+{validation}-seed{seed}"
    known = {"source": "synthetic", "reason": reason, "seed": seed}
    return _build(cls, target, None, known, lambda f: cls.generate(f, train, validation, seed))


def _prepare_real(
    cls: type[Dataset],
    root: Path,
    train: int | None,
    validation: int | None,
    seed: int,
    reason: str,
) -> Path:
    real = cls.find_real(root)
    assert real is not None
    fingerprint = cls.real_fingerprint(real)
    size = cls.real_size(train, validation)
    label = f"{size[0]}+{size[1]}" if size else f"seed{seed}"
    target = root / "prepared" / f"{cls.name}-{label}"
    known = {"source": "real", "reason": reason, "seed": seed}
    known |= {"files": f"../../{cls.name}", "fingerprint": fingerprint}
    return _build(cls, target, fingerprint, known, lambda f: cls.adopt(real, f, size, seed))


def _build(
    cls: type[Dataset],
    target: Path,
    fingerprint: str | None,
    known: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
) -> Path:
    """Have `make` fill the folder `target`, unless it is whole; gives `target`."""
    with locked(target):
        if not _is_whole(cls, target, fingerprint):
            with new_folder(target) as folder:
                _finish(cls, folder, {**known, **make(folder)})
    return target


def _finish(cls: type[Dataset], folder: Path, made: dict[str, Any]) -> None:
    record = {
        "dataset": cls.name,
        "format": cls.format,
        "nominal_train_size": cls.nominal[0],
        "nominal_validation_size": cls.nominal[1],
        "format_version": FORMAT_VERSION,
        "files": ".",
        "fingerprint": None,
        "folder_bytes": folder_bytes(folder),
    }
    write_json(folder / MANIFEST, {**record, **made})


def _is_whole(cls: type[Dataset], folder: Path, fingerprint: str | None) -> bool:
    """Whether `folder` is finished, of this version, from the same real files, and complete."""
    try:
        manifest = read_manifest(cls.name, folder)
    except (DataError, OSError):
        return False
    return (
        manifest["fingerprint"] == fingerprint
        and folder_bytes(folder, OWN_FILES) == manifest["folder_bytes"]
    )
