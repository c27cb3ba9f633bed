"""A Wasserstein GAN with a gradient penalty: five steps of the critic for one of the generator."""

import torch
from torch import nn
from truth import scaled, tick

CRITIC_STEPS, PENALTY, NOISE = 5, 10.0, 128
BATCH = scaled(64, 8)
WIDTH = scaled(64, 8)


def generator():
    w = WIDTH
    return nn.Sequential(
        nn.Linear(NOISE, 4 * w * 16), nn.Unflatten(1, (4 * w, 4, 4)), nn.ReLU(),
        nn.ConvTranspose2d(4 * w, 2 * w, 4, 2, 1), nn.BatchNorm2d(2 * w), nn.ReLU(),
        nn.ConvTranspose2d(2 * w, w, 4, 2, 1), nn.BatchNorm2d(w), nn.ReLU(),
        nn.ConvTranspose2d(w, 3, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def critic():
    w = WIDTH
    return nn.Sequential(
        nn.Conv2d(3, w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(w, 2 * w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * w, 4 * w, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(4 * w * 16, 1),
    )  # fmt: skip


def real_images(device):
    """Smooth colour gradients in random directions."""
    ramp = torch.linspace(-1, 1, 32, device=device)
    across, down = torch.randn(2, BATCH, 3, 1, 1, device=device)
    return torch.tanh(across * ramp + down * ramp[:, None])


def penalty(judge, real, fake):
    share = torch.rand(BATCH, 1, 1, 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    [slope] = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    return PENALTY * (slope.flatten(1).norm(dim=1) - 1).square().mean()


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    maker, judge = generator().to(device), critic().to(device)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-4, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4, betas=(0.0, 0.9))
    for iteration in range(1_000_000):
        for _ in range(CRITIC_STEPS):
            real = real_images(device)
            fake = maker(torch.randn(BATCH, NOISE, device=device)).detach()
            loss = judge(fake).mean() - judge(real).mean() + penalty(judge, real, fake)
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
            tick()  # of the optimizer that steps most often
        loss_of_maker = -judge(maker(torch.randn(BATCH, NOISE, device=device))).mean()
        of_maker.zero_grad()
        loss_of_maker.backward()
        of_maker.step()
        if iteration % scaled(50, 2) == 0:
            print(f"iteration {iteration} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
