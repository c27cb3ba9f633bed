"""Speech recognition: a Conformer (Gulati et al., 2020), trained with CTC."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.speech import LETTERS, MELS
from models.decoder import BASE, rotated
from models.inputs import ResidentSpeech
from models.jobs.base import Job

KERNEL = 31  # frames that the convolution of a block sees, as in the paper


def feed(dim: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim)
    )


class Block(nn.Module):
    """Attention and a convolution between two halves of a feed-forward layer."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.feeds = nn.ModuleList(feed(dim, hidden) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.convolution = nn.Sequential(
            nn.Conv1d(dim, 2 * dim, 1),
            nn.GLU(dim=1),
            nn.Conv1d(dim, dim, KERNEL, padding=KERNEL // 2, groups=dim),
            nn.BatchNorm1d(dim),
            nn.SiLU(),
            nn.Conv1d(dim, dim, 1),
        )

    def forward(self, x: Tensor, angles: Tensor, there: Tensor) -> Tensor:
        x = x + self.feeds[0](x) / 2
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in (rotated(q, angles), rotated(k, angles), v))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.convolution(self.norms[1](x).transpose(1, 2)).transpose(1, 2)
        return self.norms[2](x + self.feeds[1](x) / 2)


class Conformer(nn.Module):
    """Frames [b, t, MELS], and which of them are no padding [b, t] → logits [b, t / 4, letters].

    Positions are rotary in place of the paper's relative ones; there is no dropout.
    """

    def __init__(self, dim: int, layers: int, heads: int, hidden: int):
        super().__init__()
        self.shorten = nn.Sequential(
            nn.Conv2d(1, dim, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(dim, dim, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.enter = nn.Linear(dim * MELS // 4, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, LETTERS + 1)
        steps = torch.arange(0, dim // heads, 2) / (dim // heads)
        self.register_buffer("speeds", BASE**-steps, persistent=False)

    def forward(self, frames: Tensor, there: Tensor) -> Tensor:
        x = self.enter(self.shorten(frames[:, None]).transpose(1, 2).flatten(2))
        angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * self.speeds
        for block in self.blocks:
            x = block(x, angles, there[:, ::4])
        return self.head(x)


class AsrJob(Job):
    """One Conformer in training; a sample is a second of audio.

    model_args: dim, layers, heads, hidden. Batches are those of `ResidentSpeech`.
    """

    resident = ResidentSpeech

    def build(self, spec: dict, device: torch.device) -> None:
        self.model = Conformer(**spec["model_args"]).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=spec["optimizer"]["lr"])

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """CTC's, a letter."""
        frames, there, letters, lengths, counts = batch
        with self.autocast():
            logits = self.model(frames, there)
        said = logits.float().log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(said, letters, (lengths + 3) // 4, counts)
