"""What the catalogue may say: a workload's keys, by its kind.

One model for each kind of job. Its keys are its own: a key of another kind is refused.
"""

import re
from pathlib import Path
from shutil import which
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue, StrictInt, field_validator, model_validator

from workflow.collocation.study import variables
from workflow.collocation.study.errors import Positive, Strict, suggestion
from workflow.collocation.study.names import SHARED
from workflow.collocation.study.redaction import HIDDEN, redacted, redacted_words

IMAGES = ("cifar10", "digits", "imagenet64", "imagenet")
DATASETS = (*IMAGES, "criteo", "sources", "speech")
CODE = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"  # module:function or module:Class
MODEL = rf"^([A-Za-z_][\w.]*|{CODE})$"
PYTHON = ("python", "python3")  # the study's own, for a command
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Optimizer(Strict):
    """SGD as timm's train.py defaults run it; lr = base_lr * batch_size / base_batch."""

    name: Literal["sgd"] = "sgd"
    base_lr: float = Field(0.1, gt=0)  # learning rate at base_batch
    base_batch: Positive = 256  # samples that base_lr is for
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(2e-5, ge=0)  # of all weights but biases and norms
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate
    schedule_epochs: Positive = 300  # of the cosine, however few are trained


class DlrmOptimizer(Strict):
    """Plain SGD at a constant rate; lr = base_lr * batch_size / base_batch."""

    base_lr: float = Field(1.0, gt=0)  # learning rate at base_batch
    base_batch: Positive = 2048  # samples that base_lr is for


class Input(Strict):
    """Where a batch comes from: image files through a DataLoader of the job's own or through one
    that all jobs share, or a subset on the device.
    """

    # on the device, files, or files that one loader reads for all
    mode: Literal["resident", "files", "shared"] = "resident"
    samples: Positive = 1024  # resident: size of the subset
    workers: StrictInt = Field(4, ge=0)  # loader processes of each job

    def resolved(self) -> dict:
        """Only the keys that matter in this mode, so that the other one changes no cell."""
        key = "samples" if self.mode == "resident" else "workers"
        return {"mode": self.mode, key: getattr(self, key)}


class Workload(Strict):
    """One training job of the catalogue: what every kind has."""

    arrivals: ClassVar[str] = ""  # what it waits for, at times that nobody else decides
    uncaptured: ClassVar[str] = ""  # why no CUDA graph can hold its step
    package: ClassVar[str] = ""  # an optional one that it needs, as pip takes it
    missing: ClassVar[dict[str, str]] = {}  # key → what it names that is not there, in a sentence
    own_code: ClassVar[dict[str, str]] = {}  # key → `module:name` of the user's own code,
    own_files: ClassVar[list[Path]] = []  # and files of it: its cells run again when they change

    description: str = ""  # for people
    kind: str
    batch_size: Positive  # samples (or tokens) of a step
    warmup_steps: StrictInt = Field(20, ge=3)  # steps before the barrier, at least

    def to_json(self) -> dict:
        """As it stands in a record: its description and input are told by others, or otherwise."""
        return self.model_dump(exclude={"description", "input"}) | {"input": self.input.resolved()}

    def no_graph(self, mode: str) -> str:
        """Why no CUDA graph can hold its step with this mode of input; empty where one can."""
        files = "loader processes read its files, which no replay can"
        return self.uncaptured or (files if mode != "resident" else "")


class Triggers(Strict):
    """New data arrive at random; for each arrival the job trains on from its last weights."""

    per_s: float = Field(gt=0)  # mean; they wait for nobody
    steps: Positive  # of training for each


class TrainedWorkload(Workload):
    """What jobs that models/ trains have in common."""

    model: str = Field(pattern=MODEL)  # timm's name, or module:function
    model_args: dict[str, JsonValue] = {}  # its keyword arguments
    dataset: Literal[DATASETS]  # what it is trained on
    input: Input = Input()  # where batches come from
    pace_ms: float | None = Field(None, gt=0)  # from a step's start to the next's
    triggers: Triggers | None = None  # it trains for each, and else waits
    reserved_memory_mb: Positive | None = None  # of the device, held and not used
    memory_limit_mb: Positive | None = None  # on the CPU: of its process

    @property
    def arrivals(self) -> str:
        return "triggers" if self.triggers else ""

    @property
    def package(self) -> str:
        return "tensorsocket==0.0.5" if self.input.mode == SHARED else ""

    @property
    def own_code(self) -> dict[str, str]:
        return {key: name for key in ("kind", "model") if ":" in (name := getattr(self, key))}


class VisionWorkload(TrainedWorkload):
    """An image classifier."""

    kind: Literal["vision"] = "vision"  # an image classifier
    dataset: Literal[IMAGES]  # images to train on
    input_size: StrictInt = Field(ge=8)  # pixels
    classes: Positive = 1000  # outputs of the model's head
    optimizer: Optimizer = Optimizer()  # how weights are updated
    label_smoothing: float = Field(0.1, ge=0, lt=1)  # of the loss


class DlrmWorkload(TrainedWorkload):
    """A recommender with embedding tables. model_args: dim, bottom, top, max_rows, tables."""

    input_size: ClassVar[int] = 0  # it has no images

    kind: Literal["dlrm"]  # a recommender
    model: Literal["dlrm"] = "dlrm"  # facebookresearch's
    dataset: Literal["criteo"] = "criteo"  # clicks
    optimizer: DlrmOptimizer = DlrmOptimizer()  # how weights are updated


class LmOptimizer(DlrmOptimizer):
    """AdamW at a constant rate; lr = base_lr * batch_size / base_batch."""

    base_lr: float = Field(3e-4, gt=0)  # learning rate at base_batch
    base_batch: Positive = 8  # sequences that base_lr is for


class DecoderArgs(Strict):
    """The sizes of a language model, or of a Conformer."""

    dim: Positive  # width
    layers: Positive  # blocks
    heads: Positive  # of attention; dim is divided by them
    hidden: Positive  # width between the layers of a feed-forward layer

    @model_validator(mode="after")
    def _heads_divide(self):
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim {self.dim} is no multiple of twice the heads, {2 * self.heads}")
        return self


class LmArgs(DecoderArgs):
    lora_rank: Positive | None = None  # train LoRA's adapters (peft) alone


class LmWorkload(TrainedWorkload):
    """Fine-tuning of a language model on text, byte by byte; a sample is a sequence."""

    kind: Literal["lm"]  # a language model
    model: Literal["decoder"] = "decoder"  # models/decoder.py's
    model_args: LmArgs  # its sizes
    dataset: Literal["sources"] = "sources"  # text
    input_size: StrictInt = Field(ge=8)  # tokens of a sequence
    optimizer: LmOptimizer = LmOptimizer()  # how weights are updated

    @property
    def package(self) -> str:
        return "peft" if self.model_args.lora_rank else super().package


class AsrOptimizer(LmOptimizer):
    """AdamW at a constant rate; lr = base_lr * batch_size / base_batch."""

    base_batch: Positive = 240  # seconds of audio that base_lr is for


class AsrWorkload(TrainedWorkload):
    """Speech recognition by a Conformer with CTC; a sample is a second of audio."""

    uncaptured: ClassVar[str] = "utterances differ in length from step to step"
    input_size: ClassVar[int] = 0  # it has no images

    kind: Literal["asr"]  # a speech recogniser
    model: Literal["conformer"] = "conformer"  # models/jobs/asr.py's
    model_args: DecoderArgs  # its sizes
    dataset: Literal["speech"] = "speech"  # utterances
    optimizer: AsrOptimizer = AsrOptimizer()  # how weights are updated


class OwnWorkload(TrainedWorkload):
    """A kind of your own: `module:Class`, a models.jobs.base.Job. Its keys are `model_args`."""

    uncaptured: ClassVar[str] = "nobody has tried it with a kind of your own"

    kind: str = Field(pattern=f"^{CODE}$")  # module:Class
    model: str = "own"  # as the class takes it
    input_size: StrictInt = Field(0, ge=0)  # pixels, of image datasets
    optimizer: Optimizer = Optimizer()  # as the class takes it


class OwnInput(Strict):
    """The input of a job that the study does not feed."""

    mode: Literal["own"] = "own"

    def resolved(self) -> dict:
        return {"mode": self.mode}


class CommandWorkload(Workload):
    """Somebody's own training script, run as it is (models/jobs/command.py)."""

    uncaptured: ClassVar[str] = "a script of your own runs unchanged"
    dataset: ClassVar[None] = None
    input: ClassVar[OwnInput] = OwnInput()

    kind: Literal["command"]  # somebody's own script
    run: list[str] = Field(min_length=1)  # program, arguments, {seed}, {batch_size}
    folder: str = "."  # working directory, from where the study is run
    steps: str = "auto"  # auto (its optimizer's, or the hook), or a pattern
    first_step_s: float = Field(30, gt=0)  # seconds without a step that end a cell
    environment: dict[Variable, str | None] = {}  # null: as here, not recorded
    sync: bool = False  # auto: wait for the GPU at the end of each step
    unit: Literal["samples", "tokens", "requests"] = "samples"  # of batch_size

    @field_validator("environment")
    @classmethod
    def _are_the_scripts(cls, given):
        for name, value in given.items():
            if variables.SET_BY_STUDY.fullmatch(name):
                raise ValueError(f"{name} is the study's to set; leave it out")
            if value is None and variables.is_recorded(name):
                raise ValueError(f"{name} changes what is measured; give its value")
        return given

    @field_validator("steps")
    @classmethod
    def _steps_are_found(cls, steps):
        try:
            groups = re.compile(steps).groupindex.keys()
        except re.error as error:
            raise ValueError(f"give auto or a regular expression; this is none: {error}") from None
        if steps != "auto" and not {"step"} <= groups <= {"step", "total"}:
            wanted = r"one group (?P<step>\d+), and may have one (?P<total>\d+)"
            said = f"give auto, or a pattern, which has {wanted}"
            raise ValueError(f"{said}; this has {', '.join(groups) or 'none'}")
        return steps

    def to_json(self) -> dict:
        return without_secrets(super().to_json())

    @property
    def own_files(self) -> list[Path]:
        words = [word for word in self.run if re.fullmatch(r"\w[\w./-]{,99}", word)]
        return [path for word in words if (path := Path(self.folder, word)).is_file()]

    @property
    def missing(self) -> dict[str, str]:
        if not Path(self.folder).is_dir():
            return {"folder": f"'{self.folder}' is no folder"}
        word, *words = self.run
        if word in PYTHON:
            word = words[0] if words and re.fullmatch(r"\w[\w./-]*", words[0]) else "."
        bare = "/" not in word and word is self.run[0]  # sought on PATH, and not in the folder
        if which(word) if bare else Path(self.folder, word).exists():
            return {}
        files = [path.name for path in Path(self.folder).iterdir()]
        return {"run": f"'{word}' is not in '{self.folder}'{suggestion(word, files)}"}


def without_secrets(job: dict) -> dict:
    """A member's entry as a record may hold it: in somebody's command *** stands for secrets, so
    commands that differ in them alone are the same.
    """
    if job.get("kind") != "command" or not isinstance(job.get("run"), list):
        return job
    environment = {
        name: HIDDEN if value and variables.SECRET.search(name) else value and redacted(str(value))
        for name, value in dict(job.get("environment") or {}).items()
    }
    return job | {"run": redacted_words([*map(str, job["run"])]), "environment": environment}


class Objective(Strict):
    """What a request may take at most, in ms (vLLM's `--goodput`)."""

    ttft: float = Field(gt=0)  # until its first token
    tpot: float = Field(gt=0)  # for each token after it, on average


class ServeWorkload(Workload):
    """A language model that answers requests, which arrive at random; a sample is an answer."""

    arrivals: ClassVar[str] = "requests"
    dataset: ClassVar[None] = None
    input: ClassVar[OwnInput] = OwnInput()

    kind: Literal["serve"]  # a language model that answers requests
    engine: Literal["loop", "transformers"] = "loop"  # ours, or that package's
    model_args: DecoderArgs  # its sizes
    batch_size: Literal[1] = 1  # answers are counted one by one
    requests_per_s: float = Field(gt=0)  # mean; they wait for nobody
    prompt_tokens: Positive = 256  # of each request
    output_tokens: StrictInt = Field(128, ge=4)  # mean; each has half to 1.5 times it
    slots: Positive = 32  # requests that are answered at once
    slo_ms: Objective = Objective(ttft=500, tpot=50)  # ttft, tpot: at most

    @property
    def package(self) -> str:
        return "" if self.engine == "loop" else self.engine

    def no_graph(self, mode: str) -> str:
        return "" if self.engine == "loop" else "its engine captures what it can by itself"

    @property
    def answer_s(self) -> float:
        """What the longest answer may take within the objective."""
        return (self.slo_ms.ttft + 1.5 * self.output_tokens * self.slo_ms.tpot) / 1e3


WORKLOAD_KINDS: dict[str, type[Workload]] = {
    "vision": VisionWorkload,
    "dlrm": DlrmWorkload,
    "lm": LmWorkload,
    "asr": AsrWorkload,
    "serve": ServeWorkload,
    "command": CommandWorkload,
}


def workload_model(kind: str) -> type[Workload]:
    """The keys of that kind, or else of one of somebody's own."""
    return WORKLOAD_KINDS.get(kind, OwnWorkload)


AnyWorkload = VisionWorkload | DlrmWorkload | LmWorkload | AsrWorkload | ServeWorkload
AnyWorkload |= CommandWorkload | OwnWorkload
