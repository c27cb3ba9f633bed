"""Make a dataset ready: settle its source, build its folder once, record what was used."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.data.base import (
    FORMAT_VERSION,
    MANIFEST,
    DataError,
    Dataset,
    fingerprint,
    read_manifest,
)
from models.data.folders import make_once, write_json

SOURCES = ("auto", "real", "synthetic")
# What the manifest says beyond the published record of a dataset.
PRIVATE = ("format_version", "location", "fingerprint")


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

    `train` and `validation` are samples to generate; real data are taken whole. A `pin` file fixes
    the source: obeyed where it exists, written where not. Safe to run twice, also at once. Raises
    DataError with one line.
    """
    root = root.absolute()
    pinned = json.loads(pin.read_text(encoding="utf-8")) if pin and pin.exists() else None
    chosen, reason = _resolve(cls, root, source, pin, pinned)
    real = cls.find_real(root) if chosen == "real" else None
    size = (train or cls.generated_size[0], validation or cls.generated_size[1])
    about = {
        "dataset": cls.name,
        "format": cls.format,
        "nominal_train_size": cls.nominal[0],
        "nominal_validation_size": cls.nominal[1],
        "format_version": FORMAT_VERSION,
        "source": chosen,
        "reason": reason,
        "seed": seed,
        "location": f"../../{cls.name}" if real else ".",
        "fingerprint": fingerprint(real) if real else None,
    }
    target = root / "synthetic" / f"{cls.name}-{size[0]}+{size[1]}-seed{seed}"
    if chosen == "real":
        target = root / "prepared" / f"{cls.name}-seed{seed}"

    def is_current() -> bool:
        manifest = read_manifest(cls.name, target)
        return manifest is not None and manifest["fingerprint"] == about["fingerprint"]

    def write(folder: Path) -> None:
        if not real:
            cls.generate(folder, *size, seed)
        size_found = cls(folder, about).count() | {"bytes": _bytes(real or folder)}
        write_json(folder / MANIFEST, about | size_found)

    make_once(target, is_current, write)
    dataset = cls(target, read_manifest(cls.name, target))
    for input_size in input_sizes:
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
    if pinned:
        if source not in ("auto", pinned["source"]):
            raise DataError(
                f"source is {source!r} but {pin} pins {pinned['source']!r}; "
                f"set source: auto or {pinned['source']}, or remove the pin and its measured cells"
            )
        source = pinned["source"]
    if cls.bundled:
        if source == "synthetic":
            raise DataError("is always real; set source: auto or real")
        return "real", cls.bundled
    if source == "synthetic":
        return source, pinned["reason"] if pinned else "generated, as source is 'synthetic'"
    if cls.find_real(root):
        return "real", pinned["reason"] if pinned else "found in the data folder"
    if source == "real":
        ways = f"remove {pin}" if pinned else "set source: auto or synthetic"
        raise DataError(f"there is no {root / cls.name}; put the published files there, or {ways}")
    return "synthetic", f"generated, as there is no {cls.name}/ in the data folder"


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
