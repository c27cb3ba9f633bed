"""The datasets that the jobs of a session need, and whether they are ready on this machine."""

import hashlib
import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.study.definition import Config, Study
from workflow.collocation.study.regular_files import read_json

DATA_FORMAT = 2  # models/data/base.py's: what was prepared in another is prepared once more


@dataclass
class Datasets:
    """folder: the study's, below results. sizes: name → input sizes (pixels) to prepare it for."""

    config: Config
    study: Study
    folder: Path
    sizes: dict[str, set[int]]

    def ready_files(self) -> list[str]:
        """The files that say that the datasets are ready on this machine.

        All cells wait for all datasets: else the ones that wait would break the order.
        """
        return [self.ready_file(name) for name in self.sizes]

    def ready_file(self, name: str) -> str:
        """The first of a dataset's names that does not speak of data that are gone."""
        asked = f"format {DATA_FORMAT} {self.arguments(name)}"
        request = hashlib.sha256(asked.encode()).hexdigest()[:8]
        for number in itertools.count():
            again = f"-{number}" if number else ""
            path = self.folder / "ready" / f"{name}.{request}{again}.json"
            if not path.exists() or Path(read_json(path)["path"]).is_dir():
                break
        return path.as_posix()

    def pin_file(self, name: str) -> Path:
        """What says which source of a dataset, real or synthetic, the study found first."""
        return self.folder / "datasets" / f"{name}.json"

    def pinned(self, name: str) -> str | None:
        """The source of a dataset that the study is pinned to."""
        path = self.pin_file(name)
        return read_json(path)["source"] if path.exists() else None

    def arguments(self, name: str) -> str:
        """Arguments of `python -m models.data prepare`, quoted for a shell."""
        bundled = name in ("digits", "sources")  # they come with Python, or with a dependency
        source = "auto" if bundled else self.config.source
        options = [name, "--tied", "--root", self.config.data, "--source", source]
        options += ["--seed", self.study.seed, "--pin", self.pin_file(name)]
        if name in self.study.datasets:
            options += ["--train", self.study.datasets[name].train]
        for size in sorted(self.sizes[name]):
            options += ["--input-size", size] if size else []
        return shlex.join(map(str, options))
