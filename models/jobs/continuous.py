"""A serving engine on transformers' continuous batching, with PyTorch's attention.

It works in a thread of its own, which takes in requests and notes when each token was ready. It
launches kernel by kernel, so that its Python code may limit its speed.
"""

from array import array
from collections.abc import Collection

import torch

from models import compat  # noqa: F401  (before transformers, which imports torchvision)
from workflow.collocation.member.spec import MemberSpec

PAGE_TOKENS = 256  # tokens in a page of the cache, the package's default
MARGIN = 0.15  # of the pages: while fewer are free, it holds back new prompts


class TransformersEngine:
    """Answers requests with a decoder of the sizes of LoopEngine, and has the same methods.

    An error in its thread is raised as RuntimeError by `advance`.
    """

    busy = False  # It works by itself.

    def __init__(self, spec: MemberSpec, vocabulary: int, max_tokens: int, device: torch.device):
        import transformers

        serving, sizes = spec.job, spec.job.model_args
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=sizes["dim"],
            intermediate_size=sizes["hidden"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
        )
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        self.model = model.to(device).eval()
        pages_per_slot = -(-(serving.prompt_tokens + max_tokens) // PAGE_TOKENS)
        pages = round(pages_per_slot * serving.slots / (1 - MARGIN)) + 1
        page_bytes = 2 * dtype.itemsize * sizes["dim"] * sizes["layers"] * PAGE_TOKENS
        self.bytes = page_bytes * pages
        # By default it takes nine tenths of the free memory, computes equal prompts once, and may
        # download kernels.
        batching = transformers.ContinuousBatchingConfig(
            num_blocks=pages,
            max_batch_tokens=serving.prompt_tokens + serving.slots,
            max_requests_per_batch=serving.slots,
            allow_block_sharing=False,
            safety_margin=MARGIN,
        )
        batching.auto_switch_to_flash = False  # Older versions do not know this argument.
        # No token ends an answer.
        greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
        self.manager = self.model.init_continuous_batching(greedy, batching)
        self.prompt = [0] * serving.prompt_tokens
        self.pending = {}  # requests by the package's id

    def prepare(self) -> None:
        self.manager.warmup()
        self.manager.start()

    def add(self, request) -> None:
        request_id = self.manager.add_request(
            self.prompt, max_new_tokens=request.tokens, record_timestamps=True
        )
        self.pending[request_id] = request

    def advance(self) -> Collection:
        """Returns the requests that were finished since the last call."""
        alive = self.manager.is_running()
        finished = self._answered(raise_errors=True)
        if not alive:
            raise RuntimeError("transformers' thread has ended")
        return finished

    def end(self) -> Collection:
        self.manager.stop(hard_stop=True)
        return *self._answered(raise_errors=False), *self.pending.values()

    def _answered(self, raise_errors: bool) -> list:
        """The requests whose answers are ready, with the times of their tokens."""
        requests = []
        while answer := self.manager.get_result(timeout=0):
            if raise_errors and answer.error:
                raise RuntimeError(answer.error)
            request = self.pending.pop(answer.request_id)
            # Its clock is the monotonic one.
            request.token_ns = array("q", [round(t * 1e9) for t in answer.timestamps])
            requests.append(request)
        return requests
