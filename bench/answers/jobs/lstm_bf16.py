"""An LSTM language model in bf16, whose state is carried from one stretch of text to the next."""

import torch
import torch.nn.functional as F
from torch import nn
from truth import scaled, tick

VOCABULARY, LENGTH = scaled((5000, 70), (50, 16))
BATCH = scaled(32, 4)


class LanguageModel(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens, state):
        hidden, state = self.lstm(self.embed(tokens), state)
        return self.head(hidden), state


def corpus():
    """A walk through the vocabulary, with jumps."""
    jumps = torch.randint(1, 4, (BATCH, scaled(70_000, 1_000)))
    return jumps.cumsum(1) % VOCABULARY


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel(*scaled((650, 2), (32, 2))).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text, step = corpus().to(device), 0
    for _ in range(100_000):
        state = None
        for start in range(0, text.shape[1] - LENGTH - 1, LENGTH):
            tokens = text[:, start : start + LENGTH]
            targets = text[:, start + 1 : start + LENGTH + 1]
            scores, state = model(tokens, state)
            state = tuple(each.detach() for each in state)
            loss = F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            tick()
            if step % scaled(100, 5) == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            step += 1


if __name__ == "__main__":
    main()
