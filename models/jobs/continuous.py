"""The second way to serve: transformers' continuous batching, with the attention of PyTorch.

It works in a thread of its own, which takes in requests and tells when each token was there. It
launches kernel by kernel, so that its Python may set the pace.
"""

from array import array
from collections.abc import Collection

import torch

from models import compat  # noqa: F401  (before transformers, which imports torchvision)

PAGE = 256  # tokens of a page of its cache, as by default
MARGIN = 0.15  # of its pages: while fewer are free, it holds back new prompts


class Continuous:
    """Serves with a decoder of the loop's sizes; the arguments and the rest are as of Loop's.

    What fails in its thread is raised as RuntimeError where answers are taken.
    """

    busy = False  # it does its work by itself

    def __init__(self, spec: dict, vocabulary: int, most: int, device: torch.device):
        import transformers

        size, slots = spec["model_args"], spec["slots"]
        config = transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=size["dim"],
            intermediate_size=size["hidden"],
            num_hidden_layers=size["layers"],
            num_attention_heads=size["heads"],
        )
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=kind)
        self.model = model.to(device).eval()
        pages = -(-(spec["prompt_tokens"] + most) // PAGE) * slots
        blocks = round(pages / (1 - MARGIN)) + 1
        self.bytes = 2 * kind.itemsize * size["dim"] * size["layers"] * PAGE * blocks
        # Left alone it takes nine tenths of the memory that is free, computes equal prompts once,
        # and may download kernels.
        batching = transformers.ContinuousBatchingConfig(
            num_blocks=blocks,
            max_batch_tokens=spec["prompt_tokens"] + slots,
            max_requests_per_batch=slots,
            allow_block_sharing=False,
            safety_margin=MARGIN,
        )
        batching.auto_switch_to_flash = False  # which older versions do not know
        # No token ends an answer.
        greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
        self.manager = self.model.init_continuous_batching(greedy, batching)
        self.prompt, self.asked = [0] * spec["prompt_tokens"], {}

    def prepare(self) -> None:
        self.manager.warmup()
        self.manager.start()

    def take(self, request) -> None:
        wanted = {"max_new_tokens": request.tokens, "record_timestamps": True}
        self.asked[self.manager.add_request(self.prompt, **wanted)] = request

    def advance(self) -> Collection:
        alive, found = self.manager.is_running(), []
        while told := self.manager.get_result(timeout=0):
            if told.error:
                raise RuntimeError(told.error)
            found.append(self._timed(told))
        if not alive:
            raise RuntimeError("transformers' thread has ended")
        return found

    def end(self) -> Collection:
        self.manager.stop(hard_stop=True)
        begun = []
        while told := self.manager.get_result(timeout=0):
            begun.append(self._timed(told))
        return *begun, *self.asked.values()

    def _timed(self, told):
        """The request that this answer is of; its clock is the monotonic one."""
        request = self.asked.pop(told.request_id)
        request.times = array("q", [round(t * 1e9) for t in told.timestamps])
        return request
