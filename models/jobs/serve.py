"""A language model that answers requests while others train: the kind `serve`.

Requests arrive at random and wait for nobody (an open loop): a Poisson process, drawn from the seed
`arrivals`. What answers them is an engine: Loop, or continuous.py's. Weights are random, so every
answer is as long as was drawn for it. A request that is finished counts as a step.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection

import numpy as np
import torch

from models.clock import save_requests, save_steps
from models.decoder import Cache, Decoder
from models.device import device_facts
from models.jobs.base import compiler
from models.jobs.continuous import Continuous
from models.process import memory_peaks, set_up, synchronise, told_of
from models.protocol import Channel

VOCABULARY = 256
WARM_STEPS = 3  # before capture, as PyTorch's notes on graphs ask
PROGRESS_NS = 500_000_000
WAIT_S = 0.001  # between looks, before the window, at an engine that works by itself


class Request:
    """One that arrived at `at` (ns of the monotonic clock) and wants so many tokens."""

    def __init__(self, at: int, tokens: int):
        self.at, self.tokens, self.times = at, tokens, array("q")


class Loop:
    """A free slot takes the oldest request, prompts before tokens; then one step gives each request
    its next token. Prompt and step are a CUDA graph each.

    most: tokens of the longest answer. `busy`: whether there is work for `advance`, which returns
    the requests that it finished. `end` returns those that are not.
    """

    @torch.inference_mode()
    def __init__(self, spec: dict, vocabulary: int, most: int, device: torch.device):
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = Decoder(vocabulary, **spec["model_args"]).to(device, kind).eval()
        self.cache = Cache(self.model, spec["slots"], spec["prompt_tokens"] + most)
        self.prompt = torch.zeros(1, spec["prompt_tokens"], dtype=torch.int64, device=device)
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.slots, self.device, self.bytes = spec["slots"], device, self.cache.bytes
        self.compiled = compiler(spec)
        self.running: dict[int, Request] = {}  # by slot
        self.waiting: deque[Request] = deque()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture both graphs."""
        self.prefill = self.captured(lambda: self.cache.prefill(self.prompt, self.slot))
        self.step = self.captured(self.compiled(self.cache.step))
        self.cache.active.zero_()

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work as a CUDA graph; on a CPU as it is."""
        if self.device.type != "cuda":
            return work
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                self.cache.lengths.zero_()
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def take(self, request: Request) -> None:
        self.waiting.append(request)

    @torch.inference_mode()
    def advance(self) -> Collection[Request]:
        """Take in the oldest request that waits, if a slot is free; else one token for each."""
        if not self.busy:
            return ()
        free = next((s for s in range(self.slots) if s not in self.running), None)
        if self.waiting and free is not None:
            self.slot.fill_(free)
            self.prefill()
            self.running[free] = self.waiting.popleft()
            fresh = {free: self.running[free]}
        else:
            self.step()
            fresh = dict(self.running)
        synchronise(self.device)  # the token is with the client
        now, finished = time.monotonic_ns(), []
        for slot, request in fresh.items():
            request.times.append(now)
            if len(request.times) == request.tokens:
                self.cache.active[slot] = 0
                finished.append(self.running.pop(slot))
        return finished

    def end(self) -> Collection[Request]:
        return *self.running.values(), *self.waiting


ENGINES = {"loop": Loop, "transformers": Continuous}


class Serve:
    """A server between `build` and `stop`; `phase` says where it is."""

    def __init__(self, spec: dict, channel: Channel):
        self.spec, self.channel, self.phase = spec, channel, "build"
        self.served: list[Request] = []

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
        spec, laps = self.spec, [self.spec["forked_s"], time.monotonic()]
        self.device = set_up(spec)
        facts = device_facts(self.device)
        laps.append(time.monotonic())
        torch.manual_seed(spec["seed"])
        self.most = 3 * spec["output_tokens"] // 2
        self.engine = ENGINES[spec["engine"]](spec, VOCABULARY, self.most, self.device)
        synchronise(self.device)
        laps.append(time.monotonic())
        took = np.diff(laps).round(4).tolist()
        self.channel.emit(
            "built",
            **told_of(self.engine.model),
            resident_bytes=self.engine.bytes,
            commands=["autotune"],
            seconds=dict(zip(("fork", "device", "model"), took, strict=True)),
            **facts,
        )

    def autotune(self) -> None:
        """Make the engine ready, while the others rest."""
        began = time.monotonic()
        self.engine.prepare()
        self.channel.emit("autotuned", seconds=round(time.monotonic() - began, 4))

    def warm_up(self) -> None:
        """Answer requests back to back, beside the others, untimed."""
        until, answers = time.monotonic() + (self.spec.get("warmup_s") or 0), 0
        while answers < 1 or time.monotonic() < until:
            self.engine.take(Request(0, 2))
            while not self.engine.advance():
                time.sleep(0 if self.engine.busy else WAIT_S)
            answers += 1
        self.channel.emit("warm", steps=answers)

    def go(self) -> None:
        """Serve what arrives until told to stop."""
        draws = np.random.default_rng(self.spec["arrivals"])
        gap_ns, mean = 1e9 / self.spec["requests_per_s"], self.spec["output_tokens"]
        self.go_ns = told = time.monotonic_ns()
        self.channel.emit("started", t=self.go_ns)
        arrival, command = self.go_ns + draws.exponential(gap_ns), None
        while True:
            now = time.monotonic_ns()
            while arrival <= now:
                tokens = int(draws.integers(mean // 2, self.most, endpoint=True))
                self.engine.take(Request(round(arrival), max(tokens, 2)))
                arrival += draws.exponential(gap_ns)
            if command == "stop":
                break
            self.served += self.engine.advance()
            idle_ns = 0 if self.engine.busy else max(arrival - time.monotonic_ns(), 0)
            command = self.channel.poll(idle_ns / 1e9)
            if now - told > PROGRESS_NS:
                told, done = now, len(self.served)
                self.channel.emit("progress", steps=done, samples=done)

    def stop(self) -> None:
        """Write steps.npz and requests.npz, say what was done."""
        folder, left = self.spec["folder"], self.engine.end()
        ends = [request.times[-1] for request in self.served]
        save_steps(folder, ends, [0] * len(ends), [], [])
        every = sorted((*self.served, *left), key=lambda r: r.at)
        at, wanted = [r.at for r in every], [r.tokens for r in every]
        times = [t for r in every for t in r.times]
        save_requests(folder, at, wanted, [len(r.times) for r in every], times)
        self.channel.emit(
            "stopped",
            steps=len(ends),
            **memory_peaks(self.device.type == "cuda"),
            data_wait_share=None,
        )
