"""The entries of the catalogue, workloads.yaml: one model for each kind of job."""

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
PYTHON = ("python", "python3")  # a command's first word that means the study's own Python
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Optimizer(Strict):
    """SGD as timm's train.py defaults run it; lr = base_lr * batch_size / base_batch."""

    name: Literal["sgd"] = "sgd"
    base_lr: float = Field(0.1, gt=0)  # learning rate at base_batch
    base_batch: Positive = 256  # samples that base_lr is for
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(2e-5, ge=0)  # biases and norms have none
    schedule: Literal["cosine", "constant"] = "cosine"  # of the learning rate
    schedule_epochs: Positive = 300  # length of the cosine, however few epochs are trained


class DlrmOptimizer(Strict):
    """Plain SGD at a constant rate; lr = base_lr * batch_size / base_batch."""

    base_lr: float = Field(1.0, gt=0)  # learning rate at base_batch
    base_batch: Positive = 2048  # samples that base_lr is for


class Input(Strict):
    """Where a job's batches come from.

    mode: resident (a subset on the device), files (each job has a DataLoader of image files), or
    shared (one DataLoader of image files feeds all jobs).
    """

    mode: Literal["resident", "files", "shared"] = "resident"
    samples: Positive = 1024  # resident: size of the subset
    workers: StrictInt = Field(4, ge=0)  # loader processes of each job

    def resolved(self) -> dict:
        """The keys that matter in this mode: the other one must not change a cell's digest."""
        key = "samples" if self.mode == "resident" else "workers"
        return {"mode": self.mode, key: getattr(self, key)}


class Workload(Strict):
    """A job of the catalogue: what every kind has.

    arrivals: what the job waits for at random times, such as requests; "" if nothing.
    not_capturable: why no CUDA graph can hold its step. package: an optional package that it needs,
    as pip takes it. missing: key → a sentence on what it names and does not exist. user_code,
    user_files: the user's own code, key → `module:name`, and files. Cells run again when these
    change.
    """

    arrivals: ClassVar[str] = ""
    not_capturable: ClassVar[str] = ""
    package: ClassVar[str] = ""
    missing: ClassVar[dict[str, str]] = {}
    user_code: ClassVar[dict[str, str]] = {}
    user_files: ClassVar[list[Path]] = []

    description: str = ""  # for people
    kind: str
    batch_size: Positive  # samples (or tokens) of a step
    warmup_steps: StrictInt = Field(20, ge=3)  # minimum of steps before the barrier

    def to_json(self) -> dict:
        """The job as records hold it: without its description, with the input keys that matter."""
        return self.model_dump(exclude={"description", "input"}) | {"input": self.input.resolved()}

    def graph_obstacle(self, input_mode: str) -> str:
        """Why no CUDA graph can hold its step with this input; empty if one can."""
        if not self.not_capturable and input_mode != "resident":
            return "loader processes read its files, which no replay can"
        return self.not_capturable


class Triggers(Strict):
    """New data arrive at random; at each arrival the job trains on from its last weights."""

    per_s: float = Field(gt=0)  # mean number of arrivals per second
    steps: Positive  # steps of training at each arrival


class TrainedWorkload(Workload):
    """A job that models/ trains: what all such kinds have."""

    model: str = Field(pattern=MODEL)  # timm's name, or module:function
    model_args: dict[str, JsonValue] = {}  # its keyword arguments
    dataset: Literal[DATASETS]  # what it is trained on
    input: Input = Input()  # where batches come from
    pace_ms: float | None = Field(None, gt=0)  # time from a step's start to the next's
    triggers: Triggers | None = None  # it trains at each, and waits in between
    reserved_memory_mb: Positive | None = None  # device memory that it holds and does not use
    memory_limit_mb: Positive | None = None  # of its process, on the CPU

    @property
    def arrivals(self) -> str:
        return "triggers" if self.triggers else ""

    @property
    def package(self) -> str:
        return "tensorsocket==0.0.5" if self.input.mode == SHARED else ""

    @property
    def user_code(self) -> dict[str, str]:
        names = {"kind": self.kind, "model": self.model}
        return {key: name for key, name in names.items() if ":" in name}


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
    heads: Positive  # of attention; dim is a multiple of twice their number
    hidden: Positive  # width between the layers of a feed-forward layer

    @model_validator(mode="after")
    def _check_heads(self):
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim {self.dim} is no multiple of twice the heads, {2 * self.heads}")
        return self


class LmArgs(DecoderArgs):
    lora_rank: Positive | None = None  # if set, LoRA adapters (peft) of this rank alone train


class LmWorkload(TrainedWorkload):
    """Fine-tuning of a language model on the bytes of text; a sample is a sequence."""

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

    not_capturable: ClassVar[str] = "utterances differ in length from step to step"
    input_size: ClassVar[int] = 0  # it has no images

    kind: Literal["asr"]  # a speech recogniser
    model: Literal["conformer"] = "conformer"  # models/jobs/asr.py's
    model_args: DecoderArgs  # its sizes
    dataset: Literal["speech"] = "speech"  # utterances
    optimizer: AsrOptimizer = AsrOptimizer()  # how weights are updated


class OwnWorkload(TrainedWorkload):
    """A kind of the user's own: `module:Class`, a models.jobs.base.Job, with keys in model_args."""

    not_capturable: ClassVar[str] = "nobody has tried it with a kind of your own"

    kind: str = Field(pattern=f"^{CODE}$")  # module:Class
    model: str = "own"  # as the class takes it
    input_size: StrictInt = Field(0, ge=0)  # pixels, of image datasets
    optimizer: Optimizer = Optimizer()  # as the class takes it


class OwnInput(Strict):
    """The input of a job that reads its own data."""

    mode: Literal["own"] = "own"

    def resolved(self) -> dict:
        return {"mode": self.mode}


class CommandWorkload(Workload):
    """A user's training script, run unchanged by models/jobs/command.py."""

    not_capturable: ClassVar[str] = "a script of your own runs unchanged"
    dataset: ClassVar[None] = None
    input: ClassVar[OwnInput] = OwnInput()

    kind: Literal["command"]  # a script of the user's own
    run: list[str] = Field(min_length=1)  # program and arguments, may hold {seed}, {batch_size}
    folder: str = "."  # working directory, relative to where the study is run
    steps: str = "auto"  # auto (counts its optimizer's steps), or a pattern of its output's lines
    first_step_s: float = Field(30, gt=0)  # seconds without a step after which the cell ends
    environment: dict[Variable, str | None] = {}  # null: the shell's value, which is not recorded
    sync: bool = False  # with steps auto: wait for the GPU at the end of each step
    unit: Literal["samples", "tokens", "requests"] = "samples"  # of batch_size

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, environment):
        for name, value in environment.items():
            if variables.SET_BY_STUDY.fullmatch(name):
                raise ValueError(f"{name} is the study's to set; leave it out")
            if value is None and variables.is_recorded(name):
                raise ValueError(f"{name} changes what is measured; give its value")
        return environment

    @field_validator("steps")
    @classmethod
    def _check_pattern(cls, steps):
        try:
            groups = re.compile(steps).groupindex.keys()
        except re.error as error:
            raise ValueError(f"give auto or a regular expression; this is none: {error}") from None
        if steps != "auto" and not {"step"} <= groups <= {"step", "total"}:
            allowed = r"one group (?P<step>\d+), and may have one (?P<total>\d+)"
            names = ", ".join(groups) or "none"
            raise ValueError(f"give auto, or a pattern, which has {allowed}; this has {names}")
        return steps

    def to_json(self) -> dict:
        return without_secrets(super().to_json())

    @property
    def user_files(self) -> list[Path]:
        words = [word for word in self.run if re.fullmatch(r"\w[\w./-]{,99}", word)]
        paths = [Path(self.folder, word) for word in words]
        return [path for path in paths if path.is_file()]

    @property
    def missing(self) -> dict[str, str]:
        if not Path(self.folder).is_dir():
            return {"folder": f"'{self.folder}' is no folder"}
        program, *arguments = self.run
        name = program
        if program in PYTHON:
            if not arguments or not re.fullmatch(r"\w[\w./-]*", arguments[0]):
                return {}
            name = arguments[0]
        if program not in PYTHON and "/" not in program:
            exists = which(program) is not None
        else:
            exists = Path(self.folder, name).exists()
        if exists:
            return {}
        files = [path.name for path in Path(self.folder).iterdir()]
        return {"run": f"'{name}' is not in '{self.folder}'{suggestion(name, files)}"}


def without_secrets(job: dict) -> dict:
    """A job as records may hold it: *** replaces the secrets in a command.

    Commands that differ in secrets alone are therefore the same.
    """
    if job.get("kind") != "command" or not isinstance(job.get("run"), list):
        return job
    environment = dict(job.get("environment") or {})
    for name, value in environment.items():
        if value:
            is_secret = variables.SECRET.search(name)
            environment[name] = HIDDEN if is_secret else redacted(str(value))
    return job | {"run": redacted_words([*map(str, job["run"])]), "environment": environment}


class Objective(Strict):
    """The longest times that a request may take, in ms (vLLM's `--goodput`)."""

    ttft: float = Field(gt=0)  # time to its first token
    tpot: float = Field(gt=0)  # mean time for each later token


class ServeWorkload(Workload):
    """A language model that answers requests at random times; a sample is an answer."""

    arrivals: ClassVar[str] = "requests"
    dataset: ClassVar[None] = None
    input: ClassVar[OwnInput] = OwnInput()

    kind: Literal["serve"]  # a language model that answers requests
    engine: Literal["loop", "transformers"] = "loop"  # of models/, or of the package transformers
    model_args: DecoderArgs  # its sizes
    batch_size: Literal[1] = 1  # answers are counted one by one
    requests_per_s: float = Field(gt=0)  # mean
    prompt_tokens: Positive = 256  # of each request
    output_tokens: StrictInt = Field(128, ge=4)  # mean; each request has 0.5 to 1.5 times it
    slots: Positive = 32  # requests that are answered at the same time
    slo_ms: Objective = Objective(ttft=500, tpot=50)  # the longest times of a good answer

    @property
    def package(self) -> str:
        return "" if self.engine == "loop" else self.engine

    def graph_obstacle(self, input_mode: str) -> str:
        return "" if self.engine == "loop" else "its engine captures what it can by itself"

    @property
    def answer_s(self) -> float:
        """Seconds that the longest answer may take within the objective."""
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
    """The model of a kind of job; an unknown kind is one of the user's own."""
    return WORKLOAD_KINDS.get(kind, OwnWorkload)


AnyWorkload = VisionWorkload | DlrmWorkload | LmWorkload | AsrWorkload | ServeWorkload
AnyWorkload |= CommandWorkload | OwnWorkload
