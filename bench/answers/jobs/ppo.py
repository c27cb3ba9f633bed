"""PPO: the CPU collects episodes of balanced poles for two seconds, then come 100 updates."""

import time

import numpy as np
import torch
from torch import nn
from truth import scaled, tick

ROLLOUT_S = scaled(2.0, 0.2)
UPDATES, BATCH = 100, scaled(2048, 64)
POLES, CLIP, DISCOUNT = 64, 0.2, 0.99


class Poles:
    """A cart with a pole each; state: position, speed, angle, angular speed."""

    def __init__(self):
        self.state = np.random.uniform(-0.05, 0.05, (POLES, 4)).astype(np.float32)

    def step(self, action):
        x, v, a, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * w**2 * np.sin(a)) / 1.1
        turn = (9.8 * np.sin(a) - np.cos(a) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(a) ** 2 / 1.1))
        speed_up = push - 0.05 * turn * np.cos(a) / 1.1
        self.state = np.stack(
            [x + 0.02 * v, v + 0.02 * speed_up, a + 0.02 * w, w + 0.02 * turn], 1
        ).astype(np.float32)
        ended = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[ended] = np.random.uniform(-0.05, 0.05, (ended.sum(), 4))
        return self.state, ended


def rollout(policy, poles):
    """States, actions, their log-probabilities and returns."""
    rows, until, state = [], time.monotonic() + ROLLOUT_S, poles.state
    while time.monotonic() < until:
        with torch.no_grad():
            chosen = torch.distributions.Categorical(logits=policy(torch.from_numpy(state)))
            action = chosen.sample()
        after, ended = poles.step(action.numpy())
        rows.append((torch.from_numpy(state), action, chosen.log_prob(action), ended))
        state = after
    returns, ahead = [], np.zeros(POLES, np.float32)
    for *_, ended in reversed(rows):
        ahead = np.where(ended, 0, 1 + DISCOUNT * ahead).astype(np.float32)
        returns.append(torch.from_numpy(ahead))
    states, actions, logs, _ = zip(*rows, strict=True)
    return torch.cat(states), torch.cat(actions), torch.cat(logs), torch.cat(returns[::-1])


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width = scaled(1024, 32)

    def network(outputs):
        return nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, outputs),
        )  # fmt: skip

    policy, value, acting, poles = network(2).to(device), network(1).to(device), network(2), Poles()
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=3e-4)
    for iteration in range(100_000):
        acting.load_state_dict(policy.state_dict())
        collected = [each.to(device) for each in rollout(acting, poles)]
        for _ in range(UPDATES):
            rows = torch.randint(len(collected[0]), (BATCH,), device=device)
            states, actions, logs, returns = (each[rows] for each in collected)
            advantage = returns - value(states).squeeze(1)
            chosen = torch.distributions.Categorical(logits=policy(states))
            ratio = (chosen.log_prob(actions) - logs).exp()
            gain = advantage.detach() / (advantage.std().detach() + 1e-6)
            clipped = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
            loss = advantage.square().mean() / 100 - clipped.mean() - 0.01 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tick()
        print(f"iteration {iteration} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
