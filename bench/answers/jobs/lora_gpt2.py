"""Fine-tunes a small GPT-2 by low-rank adapters of its attention."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from truth import scaled, tick

RANK, ALPHA = 8, 16
VOCABULARY, LENGTH = scaled((8000, 256), (100, 32))
BATCH = scaled(8, 4)


class LoraLayer(nn.Module):
    def __init__(self, frozen, inputs, outputs):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(inputs, RANK, bias=False)
        self.up = nn.Linear(RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x)) * ALPHA / RANK


def batch(device):
    """Sequences that count up, by a stride that the model has to notice."""
    start = torch.randint(VOCABULARY, (BATCH, 1), device=device)
    stride = torch.randint(1, 4, (BATCH, 1), device=device)
    return (start + stride * torch.arange(LENGTH, device=device)) % VOCABULARY


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, layers, heads = scaled((512, 8, 8), (64, 2, 2))
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = LoraLayer(block.attn.c_attn, width, 3 * width)
        block.attn.c_proj = LoraLayer(block.attn.c_proj, width, width)
    model.to(device).train()
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=1e-3)
    for step in range(1_000_000):
        tokens = batch(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tick()
        if step % scaled(100, 5) == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
