"""Fine-tuning of a language model on text, byte by byte: all weights, or LoRA's adapters (peft)."""

import torch
from torch import Tensor
from torch.nn import functional

from models.decoder import Decoder
from models.inputs import ResidentTokens
from models.jobs.base import Job

LORA = ("qkv", "out", "up", "down")  # layers that get adapters


class LmJob(Job):
    """One decoder in training; a sample is a sequence of `input_size` tokens.

    model_args: dim, layers, heads, hidden, and lora_rank: all weights are trained where it is not
    given. Batches are (tokens [b, t], the tokens after them [b, t]), int64.
    """

    capturable = True
    resident = ResidentTokens

    def build(self, spec: dict, device: torch.device) -> None:
        arguments = dict(spec["model_args"])
        rank = arguments.pop("lora_rank", None)
        model = Decoder(256, **arguments)
        if rank:
            from peft import LoraConfig, inject_adapter_in_model

            model = inject_adapter_in_model(LoraConfig(r=rank, target_modules=[*LORA]), model)
        self.model = model.to(device).train()
        trained = (each for each in model.parameters() if each.requires_grad)
        graph = {"fused": True, "capturable": True} if spec["cuda_graph"] else {}
        self.optimizer = torch.optim.AdamW(trained, lr=spec["optimizer"]["lr"], **graph)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy of the next byte."""
        tokens, following = batch
        with self.autocast():
            logits = self.model(tokens)
        return functional.cross_entropy(logits.float().flatten(0, 1), following.flatten())
