"""A U-Net learns to denoise; gradients of two batches make a step, and weights are averaged."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from truth import scaled, tick

BATCH, PIXELS, TIMES = scaled((32, 32, 1000), (4, 16, 100))
ACCUMULATED, DECAY = 2, 0.999


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, after), nn.Conv2d(after, after, 3, padding=1)
        self.enter, self.time = nn.Conv2d(before, after, 3, padding=1), nn.Linear(64, after)

    def forward(self, x, time):
        x = self.enter(x) + self.time(time)[:, :, None, None]
        return x + self.conv(F.silu(self.norm(x)))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        w = width
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.down = nn.ModuleList([Block(3, w), Block(w, 2 * w), Block(2 * w, 4 * w)])
        self.up = nn.ModuleList([Block(4 * w + 2 * w, 2 * w), Block(2 * w + w, w)])
        self.last = nn.Conv2d(w, 3, 1)

    def forward(self, x, time):
        time, skips = self.time(time[:, None]), []
        for block in self.down:
            x = block(x if not skips else F.avg_pool2d(x, 2), time)
            skips.append(x)
        for block, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skip], 1), time)
        return self.last(x)


def images(device):
    ramp = torch.linspace(-1, 1, PIXELS, device=device)
    across, down = torch.randn(2, BATCH, 3, 1, 1, device=device)
    return torch.tanh(across * ramp + down * ramp[:, None])


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = UNet(scaled(64, 8)).to(device)
    averaged = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, TIMES, device=device), 0)
    for step in range(1_000_000):
        for _ in range(ACCUMULATED):
            clean, noise = images(device), torch.randn(BATCH, 3, PIXELS, PIXELS, device=device)
            time = torch.randint(TIMES, (BATCH,), device=device)
            share = kept[time][:, None, None, None]
            noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
            loss = F.mse_loss(model(noisy, time / TIMES), noise) / ACCUMULATED
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                average.lerp_(weight, 1 - DECAY)
        tick()
        if step % scaled(50, 5) == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
