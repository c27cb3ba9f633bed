"""The datasets that the jobs of a session need, and whether they are ready on this machine."""

import hashlib
import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path

from workflow.collocation.study.definition import Config, Study
from workflow.collocation.study.layout import DATA_FORMAT
from workflow.collocation.study.regular_files import read_json


@dataclass
class Datasets:
    """The datasets of a session.

    folder: the study's, below results. sizes: dataset → the input sizes (pixels) to prepare.
    """

    config: Config
    study: Study
    folder: Path
    sizes: dict[str, set[int]]

    def ready_files(self) -> list[str]:
        """The files that exist once each dataset is ready on this machine.

        All cells wait for all datasets: if only some cells waited, the order would change.
        """
        return [self.ready_file(name) for name in self.sizes]

    def ready_file(self, name: str) -> str:
        """The first name of a ready file that is free, or whose dataset still exists."""
        request = f"format {DATA_FORMAT} {self.arguments(name)}"
        digest = hashlib.sha256(request.encode()).hexdigest()[:8]
        for number in itertools.count():
            suffix = f"-{number}" if number else ""
            path = self.folder / "ready" / f"{name}.{digest}{suffix}.json"
            if not path.exists() or Path(read_json(path)["path"]).is_dir():
                break
        return path.as_posix()

    def pin_file(self, name: str) -> Path:
        """The file with the source of a dataset, real or synthetic, that the study found first."""
        return self.folder / "datasets" / f"{name}.json"

    def pinned_source(self, name: str) -> str | None:
        """The source of a dataset that the study keeps to; None before the first run."""
        path = self.pin_file(name)
        return read_json(path)["source"] if path.exists() else None

    def arguments(self, name: str) -> str:
        """Arguments of `python -m models.data prepare`, quoted for a shell."""
        ships_with_packages = name in ("digits", "sources")
        source = "auto" if ships_with_packages else self.config.source
        options = [name, "--tied", "--root", self.config.data, "--source", source]
        options += ["--seed", self.study.seed, "--pin", self.pin_file(name)]
        if name in self.study.datasets:
            options += ["--train", self.study.datasets[name].train]
        for size in sorted(self.sizes[name]):
            options += ["--input-size", size] if size else []
        return shlex.join(map(str, options))
