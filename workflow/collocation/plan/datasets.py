"""The datasets that the jobs of a session need, and whether they are ready on this machine."""

import hashlib
import itertools
import json
import os
import shlex
from pathlib import Path

from workflow.collocation.spec.study import Config, Study

DATA_FORMAT = 2  # models/data/base.py's: what was prepared in another is prepared once more


class Datasets:
    """folder: the study's, below results. sizes: name → input sizes (pixels) to prepare it for."""

    def __init__(self, config: Config, study: Study, folder: Path, sizes: dict[str, set[int]]):
        self.config, self.study, self.folder, self.sizes = config, study, folder, sizes

    def ready_files(self) -> list[str]:
        """The files that say that the datasets are ready on this machine.

        All cells wait for all datasets: else the ones that wait would break the order.
        """
        return [self.ready_file(name) for name in self.sizes]

    def ready_file(self, name: str) -> str:
        """The file that says that a dataset is ready: the first of its names that does not speak of
        data that are gone, or of another source than the pin.
        """
        asked = f"format {DATA_FORMAT} {self.arguments(name)}"
        request = hashlib.sha256(asked.encode()).hexdigest()[:8]
        first = Path(self.folder, "ready", f"{name}.{request}.json")
        others = (first.with_stem(f"{first.stem}-{number}") for number in itertools.count(1))
        paths, pin = itertools.chain([first], others), self.pinned(name)
        return next(path for path in paths if _usable(path, pin)).as_posix()

    def pin_file(self, name: str) -> Path:
        """What says which source of a dataset, real or synthetic, the study found first."""
        return self.folder / "datasets" / f"{name}.json"

    def pinned(self, name: str) -> str | None:
        """The source of a dataset that the study is pinned to."""
        return (_read_json(self.pin_file(name)) or {}).get("source")

    def pin(self) -> None:
        """Pin data that another results folder had made ready: no job will do it here."""
        for name in self.sizes:
            ready, target = _read_json(Path(self.ready_file(name))), self.pin_file(name)
            if ready and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                del ready["path"]
                partial = target.with_name(f".{target.name}.{os.getpid()}")
                partial.write_text(json.dumps(ready, indent=1) + "\n")
                partial.replace(target)

    def arguments(self, name: str) -> str:
        """Arguments of `python -m models.data prepare`, quoted for a shell."""
        source = "auto" if name == "digits" else self.config.source  # they come with a dependency
        options = [name, "--tied", "--root", self.config.data, "--source", source]
        options += ["--seed", self.study.seed, "--pin", self.pin_file(name)]
        if name in self.study.datasets:
            sizes = self.study.datasets[name]
            options += ["--train", sizes.train, "--validation", sizes.validation]
        for size in sorted(self.sizes[name]):
            options += ["--input-size", size] if size else []
        return shlex.join(str(option) for option in options)


def _usable(path: Path, pin: str | None) -> bool:
    """Whether it is still to be written, or says that data are there as the pin wants them."""
    ready = _read_json(path) or {}
    there = "path" in ready and Path(ready["path"]).is_dir()
    return not path.exists() or (there and pin in (None, ready.get("source")))


def _read_json(path: Path) -> dict | None:
    """The JSON object in the file, or None where there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
