"""A transformer encoder, compiled, that restores masked tokens."""

import torch
import torch.nn.functional as F
from torch import nn
from truth import scaled, tick

VOCABULARY, LENGTH = scaled((4096, 128), (64, 16))
BATCH = scaled(32, 4)
MASK = 0


class Encoder(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.position))


def batch(device):
    """Tokens that count up, and the same with some of them masked."""
    start = torch.randint(1, VOCABULARY, (BATCH, 1), device=device)
    tokens = (start + torch.arange(LENGTH, device=device)) % (VOCABULARY - 1) + 1
    hidden = torch.rand(BATCH, LENGTH, device=device) < 0.15
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Encoder(*scaled((384, 6, 6), (32, 2, 1))).to(device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1_000_000):
        masked, targets = batch(device)
        scores = compiled(masked)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        tick()
        if step % scaled(100, 5) == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
