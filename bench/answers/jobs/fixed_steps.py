"""A residual network for a fixed number of steps; then it saves its weights and ends."""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from truth import scaled, tick

STEPS = scaled(2_000, 40)
BATCH, PIXELS = scaled((64, 32), (8, 16))


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])

    def forward(self, x):
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.skip(x))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    w = scaled(64, 8)
    model = nn.Sequential(
        Block(3, w, 1), Block(w, w, 1), Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1),
        Block(2 * w, 4 * w, 2), Block(4 * w, 4 * w, 1), Block(4 * w, 8 * w, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    patterns = torch.randn(10, 3, PIXELS, PIXELS, device=device)
    for step in range(STEPS):
        targets = torch.randint(10, (BATCH,), device=device)
        images = patterns[targets] + 2 * torch.randn(BATCH, 3, PIXELS, PIXELS, device=device)
        loss = F.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        tick()
        if step % scaled(200, 5) == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    with tempfile.TemporaryFile() as file:
        torch.save(model.state_dict(), file)


if __name__ == "__main__":
    main()
