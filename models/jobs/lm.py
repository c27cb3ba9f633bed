"""Fine-tuning of a language model on text, byte by byte: all weights, or LoRA's adapters (peft)."""

import torch
from torch import Tensor
from torch.nn import functional

from models.decoder import Decoder
from models.inputs import ResidentTokens
from models.jobs.base import Job
from workflow.collocation.member.spec import MemberSpec

LORA_LAYERS = ["qkv", "out", "up", "down"]  # that get adapters


class LmJob(Job):
    """One decoder in training; a sample is a sequence of `input_size` tokens.

    model_args: dim, layers, heads, hidden, and lora_rank, without which all weights are trained.
    Batches are (tokens [b, t], the tokens after them [b, t]), int64.
    """

    capturable = True
    resident = ResidentTokens

    def build(self, spec: MemberSpec, device: torch.device) -> None:
        sizes = dict(spec.job.model_args)
        rank = sizes.pop("lora_rank", None)
        model = Decoder(256, **sizes)
        if rank:
            from peft import LoraConfig, inject_adapter_in_model

            model = inject_adapter_in_model(LoraConfig(r=rank, target_modules=LORA_LAYERS), model)
        self.model = model.to(device).train()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        graph = {"fused": True, "capturable": True} if spec.implementation.cuda_graph else {}
        self.optimizer = torch.optim.AdamW(weights, lr=spec.job.optimizer.lr, **graph)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy of the next byte."""
        tokens, next_tokens = batch
        with self.autocast():
            logits = self.model(tokens)
        return functional.cross_entropy(logits.float().flatten(0, 1), next_tokens.flatten())
