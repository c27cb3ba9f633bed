"""What a member process has to know to run its job, as the conductor sends it.

`MemberSpec` travels to the fork server as JSON (`to_json`, `from_json`). Only the standard library
is imported here, because every member imports this module.
"""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """How the training step of a job is written.

    precision: "tf32", or "bf16" under autocast. channels_last: the memory format of images and
    weights. sync: the host waits for the loss of each step. cuda_graph: the step is captured once
    and replayed. backward: the thread of the backward pass, "autograd" for autograd's own, "caller"
    for the one that runs the forward pass. compile: the loss goes through torch.compile.
    """

    precision: str = "tf32"
    channels_last: bool = False
    sync: bool = False
    cuda_graph: bool = False
    backward: str = "autograd"
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Settings of the optimizer; kinds of job that have no use for one leave it at its default.

    lr: the learning rate for the batch size of the job. schedule: "constant", or "cosine" over
    `schedule_epochs`.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: str = "constant"
    schedule_epochs: int = 0


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """Where batches come from.

    mode: "resident" (`samples` samples on the device), "files" (a DataLoader of the job with
    `workers` processes) or "shared" (one DataLoader for all jobs of the cell).
    """

    mode: str
    samples: int = 0
    workers: int = 0


@dataclass(frozen=True, kw_only=True)
class TriggerSpec:
    """Retraining: `per_s` triggers a second arrive at random; each is worth `steps` steps."""

    per_s: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class SharedLoaderSpec:
    """The DataLoader that all jobs of a cell share: its four local TCP ports, and how many jobs."""

    ports: list[int]
    jobs: int


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """A model to train, and its data.

    model: a name that the kind of job knows, or "module:function". model_args: its keyword
    arguments. dataset, dataset_folder: the name of a prepared dataset, and its folder. input_size:
    pixels of an image's side or tokens of a sequence; 0 where neither exists. classes: outputs of
    a classifier. pace_ms: at least so long from the start of a step to the next. triggers: the job
    waits for them, and trains only then. reserved_memory_mb: device memory held and not used.
    shared_loader: for input mode "shared".
    """

    model: str
    dataset: str
    dataset_folder: str
    input: InputSpec
    optimizer: OptimizerSpec
    model_args: dict
    input_size: int = 0
    classes: int = 0
    label_smoothing: float = 0.0
    pace_ms: float | None = None
    triggers: TriggerSpec | None = None
    reserved_memory_mb: int | None = None
    shared_loader: SharedLoaderSpec | None = None


@dataclass(frozen=True, kw_only=True)
class ServingSpec:
    """A language model that answers requests.

    engine: "loop" (models/jobs/serve.py) or "transformers". model_args: dim, layers, heads, hidden.
    requests_per_s: the mean rate of a Poisson process. prompt_tokens: of every request.
    output_tokens: the mean length of an answer; lengths are uniform from half to 1.5 times it.
    slots: requests that are answered at once.
    """

    engine: str
    model_args: dict
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class ViewSpec:
    """How a copy of a script is kept from writing in the folder where it runs (member/view.py).

    kind: "overlay" or "copy". scratch: the folder for what it writes. places: the folders that
    overlays cover, each before those below it. user_namespace: overlays need one here. left_out:
    folders of which no copy is made.
    """

    kind: str
    scratch: str
    places: list[str] = field(default_factory=list)
    user_namespace: bool = False
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """A training script of the user, which runs unchanged.

    command: program and arguments, in which {seed} and {batch_size} are filled in. working_folder:
    where it runs. steps: "auto" to count the steps of its optimizer or its calls of models.hook, or
    a pattern over its output with the group `step`. step_timeout_s: so long without a step ends
    the cell; ten times as long while its processes work. restarts: a run that made a step and ended
    with exit code 0 is started again. view: None where the script may write in that folder.
    """

    command: list[str]
    working_folder: str
    steps: str
    step_timeout_s: float
    restarts: bool = False
    view: ViewSpec | None = None


# Kinds of job that are not trained by models/.
JOB_CLASSES = {"serve": ServingSpec, "command": ScriptSpec}
PARTS = {  # of jobs, that are dataclasses themselves
    "input": InputSpec,
    "optimizer": OptimizerSpec,
    "triggers": TriggerSpec,
    "shared_loader": SharedLoaderSpec,
    "view": ViewSpec,
}


@dataclass(frozen=True, kw_only=True)
class MemberSpec:
    """One job of a cell, as its process is to run it.

    index: its place in the set. kind: of job, as the catalogue names it. batch_size: samples of a
    step. seed: of weights, and of the order of samples. device: "cuda" or "cpu". cores: CPUs that
    the process may use. threads: of torch's CPU kernels. folder: where it writes steps.npz.
    environment: variables to set before CUDA is initialised; None removes one.
    warmup_steps, warmup_s: the least that comes before the barrier. loss_interval_steps: the loss
    of every so many steps is kept. window_steps: a fixed amount of work after the barrier; None:
    until told to stop. linger_s: how long it goes on after a window, to answer the requests that
    arrived in it. arrival_seed: of the times at which requests or triggers arrive.
    launched_ahead_s: seconds of GPU work that may be launched and not finished; None: no limit.
    on_stream: it shares one process with all members that have this set, each on a CUDA stream of
    its own. memory_limit_bytes: of host memory.
    The fork server adds lock_descriptors, which the process keeps open, and forked_s, the monotonic
    time of the fork.
    """

    index: int
    workload: str
    kind: str
    job: TrainingSpec | ServingSpec | ScriptSpec
    batch_size: int
    seed: int
    device: str
    cores: list[int]
    threads: int
    folder: str
    implementation: Implementation
    environment: dict[str, str | None]
    warmup_steps: int
    warmup_s: float
    loss_interval_steps: int
    window_steps: int | None = None
    linger_s: float = 0.0
    arrival_seed: int | None = None
    launched_ahead_s: float | None = None
    on_stream: bool = False
    memory_limit_bytes: int | None = None
    lock_descriptors: tuple[int, ...] = ()
    forked_s: float = 0.0

    @property
    def process(self) -> int | str:
        """Equal for members that run in the same process."""
        return "streams" if self.on_stream else self.index

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict) -> "MemberSpec":
        job_fields = dict(fields["job"])
        for name, part_class in PARTS.items():
            if job_fields.get(name):
                job_fields[name] = part_class(**job_fields[name])
        job_class = JOB_CLASSES.get(fields["kind"], TrainingSpec)
        implementation = Implementation(**fields["implementation"])
        return cls(**fields | {"implementation": implementation, "job": job_class(**job_fields)})
