"""The file of a job: all that one cell's run needs to know."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from workflow.collocation.spec.cell import CellSpec
from workflow.collocation.spec.errors import ConfigError, Strict
from workflow.collocation.spec.load import check
from workflow.collocation.spec.study import Gpu, Sampling, Time, Timed


class Task(Strict):
    """One attempt at a cell, as a job file says it. Paths are as seen from the working directory.

    output: the run.json to write. data: what `models.data prepare` wrote. needs_gpu: planned for a
    GPU, so never to be run without. session, machine: what the record is to say; machine where this
    user can keep no alias. code: (digest of the texts, of the code), so that a job need not parse
    it, which takes 0.3 s. preloaded: the name of the server that has imported the trainer. place:
    in the run, such as 3/20. left_s: what follows it takes. deadline: Unix time at which the budget
    ends. estimate_s: what the cell will take. wait: how long others on the card are waited for.
    given_up: the file that says why no cell of the run is measured any more on this device, once
    it was waited for in vain.
    """

    study: str
    cell: str = Field(pattern=r"^[^/]+/[^/]+/[^/]+/r[1-9]\d*$")
    attempt: int = Field(1, ge=1)
    output: Path
    spec: CellSpec
    gpu: Gpu = "auto"
    needs_gpu: bool = False
    mig_mode: Literal["keep", "switch"] = "keep"
    trainer: str = "models.train"
    data: list[Path] = []
    timeout: dict[Timed, float] = {}
    telemetry: Sampling = Sampling()
    session: str | None = None
    machine: str | None = None
    code: tuple[str, str] | None = None
    preloaded: str | None = None
    place: str = ""
    left_s: float = 0
    deadline: float | None = None
    estimate_s: float = 0
    wait: Time = "10m"
    given_up: Path | None = None

    @property
    def ended(self) -> str | None:
        """Why no cell of this run is measured any more; None while they are."""
        there = self.given_up is not None and self.given_up.exists()
        return self.given_up.read_text() if there else None

    @classmethod
    def read(cls, path: Path) -> "Task":
        """Raises ConfigError: one line with file and key."""
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: is no file of a job: {error}") from None
        return check(cls, content, str(path))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n")
