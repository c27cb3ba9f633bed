"""Make a dataset ready: settle its source, build its folder once, record what was used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.data.base import FORMAT_VERSION, MANIFEST, Dataset, read_manifest
from models.data.storage import DataError, folder_bytes, locked, new_folder, read_json, write_json

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
    pinned = read_json(pin) if pin and pin.exists() else None
    chosen, reason = _resolve(cls, root, source, pin, pinned)
    size = cls.generated_size if chosen == "synthetic" else cls.real_size
    size = size and (train or size[0], validation or size[1])
    about = {
        "dataset": cls.name,
        "format": cls.format,
        "nominal_train_size": cls.nominal[0],
        "nominal_validation_size": cls.nominal[1],
        "format_version": FORMAT_VERSION,
        "source": chosen,
        "reason": reason,
        "seed": seed,
        "files": ".",
        "fingerprint": None,
    }
    if chosen == "real":
        real = cls.find_real(root)
        about |= {"files": f"../../{cls.name}", "fingerprint": cls.real_fingerprint(real)}
        label = f"{size[0]}+{size[1]}" if size else f"seed{seed}"
        target = root / "prepared" / f"{cls.name}-{label}"
    else:
        target = root / "synthetic" / f"{cls.name}-{size[0]}+{size[1]}-seed{seed}"
    with locked(target):
        if not _is_whole(cls, target, about["fingerprint"]):
            with new_folder(target) as folder:
                if chosen == "real":
                    about |= cls.adopt(real, folder, size)
                else:
                    about |= cls.generate(folder, *size, seed)
                write_json(folder / MANIFEST, about | {"folder_bytes": folder_bytes(folder)})
    dataset = cls(target, read_manifest(cls.name, target))
    for input_size in input_sizes:
        if input_size:  # 0: a dataset without images
            dataset.prepare_resident(input_size)
    record = {key: value for key, value in dataset.manifest.items() if key not in PRIVATE}
    record["reason"] = reason
    if pin and not pinned:
        write_json(pin, record)
    return {**record, "path": str(target)}


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
    failure, found = None, cls.origin
    if cls.find_real(root) is None:
        failure, found = cls.download(root), "downloaded"
    if failure is None:
        return "real", pinned["reason"] if pinned else found
    if source == "real":
        ways = "remove the pin" if pinned else "set source: auto or synthetic"
        raise DataError(
            f"{who} but {root / cls.name} {cls.lacks} and it {failure}; {cls.how_to_get}, or {ways}"
        )
    return "synthetic", f"generated, as {cls.name}/ {cls.lacks} and it {failure}"


def _is_whole(cls: type[Dataset], folder: Path, fingerprint: str | None) -> bool:
    """Whether `folder` is finished, of this version, from the same real files, and complete."""
    try:
        manifest = read_manifest(cls.name, folder)
    except DataError:
        return False
    return (
        manifest["fingerprint"] == fingerprint
        and folder_bytes(folder, OWN_FILES) == manifest["folder_bytes"]
    )
