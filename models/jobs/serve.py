"""The kind `serve`: a language model that answers requests while other jobs train.

Requests arrive at random and wait for nobody (an open loop): a Poisson process, drawn from
`arrival_seed`. An engine answers them: LoopEngine, or TransformersEngine in continuous.py. Weights
are random, so every answer is as long as was drawn for it. A finished request counts as a step.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection
from itertools import chain

import numpy as np
import torch

from models.decoder import Cache, Decoder
from models.device import device_facts
from models.jobs.base import compiler
from models.jobs.continuous import TransformersEngine
from models.member import BuildTimes, save_requests, save_steps
from models.process import forget_memory_peaks, memory_peaks, model_facts, set_up, synchronise
from workflow.collocation.member.protocol import Channel
from workflow.collocation.member.spec import MemberSpec

VOCABULARY = 256
EAGER_RUNS = 3  # before a capture, as PyTorch's notes on CUDA graphs recommend
PROGRESS_NS = 500_000_000
WAIT_S = 0.001  # between looks, before the window, at an engine that works in a thread


class GenerationRequest:
    """A request that arrived at `arrival_ns` (monotonic clock) and asks for `tokens` tokens.

    token_ns: when each of its tokens was ready.
    """

    def __init__(self, arrival_ns: int, tokens: int):
        self.arrival_ns, self.tokens, self.token_ns = arrival_ns, tokens, array("q")


class LoopEngine:
    """Answers requests in a loop, with one CUDA graph for prompts and one for steps.

    A free slot takes the oldest request, prompts before tokens; then one step gives each request
    its next token. `busy`: whether `advance` has work to do.

    max_tokens: of the longest answer.
    """

    @torch.inference_mode()
    def __init__(self, spec: MemberSpec, vocabulary: int, max_tokens: int, device: torch.device):
        serving = spec.job
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = Decoder(vocabulary, **serving.model_args).to(device, dtype).eval()
        self.cache = Cache(self.model, serving.slots, serving.prompt_tokens + max_tokens)
        self.prompt = torch.zeros(1, serving.prompt_tokens, dtype=torch.int64, device=device)
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.slots, self.device, self.bytes = serving.slots, device, self.cache.bytes
        self.compiled = compiler(spec)
        self.running: dict[int, GenerationRequest] = {}  # by slot
        self.waiting: deque[GenerationRequest] = deque()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture both graphs."""
        self.prefill = self._captured(lambda: self.cache.prefill(self.prompt, self.slot))
        self.step = self._captured(self.compiled(self.cache.step))
        self.cache.active.zero_()

    def _captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a CUDA graph; on a CPU unchanged."""
        if self.device.type != "cuda":
            return work
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(EAGER_RUNS):
                self.cache.lengths.zero_()
                work()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request."""
        self.waiting.append(request)

    @torch.inference_mode()
    def advance(self) -> Collection[GenerationRequest]:
        """Take in one prompt or generate one token for each request; returns finished requests."""
        if not self.busy:
            return ()
        slot = next((slot for slot in range(self.slots) if slot not in self.running), None)
        if self.waiting and slot is not None:
            self.slot.fill_(slot)
            self.prefill()
            self.running[slot] = self.waiting.popleft()
            advanced = {slot: self.running[slot]}
        else:
            self.step()
            advanced = dict(self.running)
        synchronise(self.device)  # A token counts once the client could have it.
        now, finished = time.monotonic_ns(), []
        for slot, request in advanced.items():
            request.token_ns.append(now)
            if len(request.token_ns) == request.tokens:
                self.cache.active[slot] = 0
                finished.append(self.running.pop(slot))
        return finished

    def end(self) -> Collection[GenerationRequest]:
        """Stop working; returns the requests that are not finished."""
        return *self.running.values(), *self.waiting


ENGINES = {"loop": LoopEngine, "transformers": TransformersEngine}


class ServingMember:
    """A server, from its build to its end; `phase` is build, warm, window or stop."""

    def __init__(self, spec: MemberSpec, channel: Channel):
        self.spec, self.channel, self.phase = spec, channel, "build"
        self.finished: list[GenerationRequest] = []

    def run(self) -> None:
        self.build()
        for phase, part in (("warm", self.autotune), ("warm", self.warm_up), ("window", self.go)):
            if self.channel.wait() == "stop":
                break
            self.phase = phase
            part()
        self.phase = "stop"
        self.stop()

    def build(self) -> None:
        """Set up the process and the engine; send `built`."""
        spec, times = self.spec, BuildTimes(self.spec.forked_s)
        times.lap("fork")
        self.device = set_up(spec)
        facts = device_facts(self.device, ("bf16",))  # that of the engines
        forget_memory_peaks(self.device)
        times.lap("device")
        torch.manual_seed(spec.seed)
        self.max_tokens = 3 * spec.job.output_tokens // 2
        engine_class = ENGINES[spec.job.engine]
        self.engine = engine_class(spec, VOCABULARY, self.max_tokens, self.device)
        synchronise(self.device)
        times.lap("model")
        self.channel.emit(
            "built",
            **model_facts(self.engine.model),
            resident_bytes=self.engine.bytes,
            commands=["autotune"],
            seconds=times.seconds,
            **facts,
        )

    def autotune(self) -> None:
        """Make the engine ready, while the other members rest."""
        began = time.monotonic()
        self.engine.prepare()
        self.channel.emit("autotuned", seconds=round(time.monotonic() - began, 4))

    def warm_up(self) -> None:
        """Answer requests back to back, beside the other members; send `warm`."""
        end_s, answers = time.monotonic() + self.spec.warmup_s, 0
        while answers < 1 or time.monotonic() < end_s:
            self.engine.add(GenerationRequest(0, 2))
            while not self.engine.advance():
                time.sleep(0 if self.engine.busy else WAIT_S)
            answers += 1
        self.channel.emit("warm", steps=answers)

    def go(self) -> None:
        """Answer the requests that arrive, until told to stop."""
        rng = np.random.default_rng(self.spec.arrival_seed)
        gap_ns, mean_tokens = 1e9 / self.spec.job.requests_per_s, self.spec.job.output_tokens
        go_ns = reported_ns = time.monotonic_ns()
        self.channel.emit("started", t=go_ns)
        arrival_ns, command = go_ns + rng.exponential(gap_ns), None
        while True:
            now = time.monotonic_ns()
            while arrival_ns <= now:
                tokens = int(rng.integers(mean_tokens // 2, self.max_tokens, endpoint=True))
                self.engine.add(GenerationRequest(round(arrival_ns), max(tokens, 2)))
                arrival_ns += rng.exponential(gap_ns)
            if command == "stop":
                break
            self.finished += self.engine.advance()
            idle_ns = 0 if self.engine.busy else max(arrival_ns - time.monotonic_ns(), 0)
            command = self.channel.poll(idle_ns / 1e9)
            if now - reported_ns > PROGRESS_NS:
                reported_ns, steps = now, len(self.finished)
                self.channel.emit("progress", steps=steps, samples=steps)

    def stop(self) -> None:
        """Write steps.npz and requests.npz, send `stopped`."""
        folder = self.spec.folder
        end_ns = [request.token_ns[-1] for request in self.finished]
        requests = [*self.finished, *self.engine.end()]
        requests.sort(key=lambda request: request.arrival_ns)
        save_steps(folder, end_ns, [0] * len(end_ns), [], [])
        save_requests(
            folder,
            [request.arrival_ns for request in requests],
            [request.tokens for request in requests],
            [len(request.token_ns) for request in requests],
            list(chain.from_iterable(request.token_ns for request in requests)),
        )
        self.channel.emit(
            "stopped",
            steps=len(end_ns),
            **memory_peaks(self.device.type == "cuda"),
            data_wait_share=None,
        )
