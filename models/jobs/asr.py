"""Speech recognition: a Conformer (Gulati et al., 2020), trained with CTC."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.speech import LETTERS, MELS
from models.decoder import rotary_speeds, rotate
from models.inputs import ResidentSpeech
from models.jobs.base import Job
from workflow.collocation.member.spec import MemberSpec

KERNEL = 31  # frames that the convolution of a block covers, as in the paper


def feed_forward(dim: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, dim)
    )


class ConformerBlock(nn.Module):
    """Attention and a convolution between two halves of a feed-forward layer."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.feeds = nn.ModuleList(feed_forward(dim, hidden) for _ in range(2))
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

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        x = x + self.feeds[0](x) / 2
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        attended = functional.scaled_dot_product_attention(
            rotate(q, angles).transpose(1, 2),
            rotate(k, angles).transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask[:, None, None],
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.convolution(self.norms[1](x).transpose(1, 2)).transpose(1, 2)
        return self.norms[2](x + self.feeds[1](x) / 2)


class Conformer(nn.Module):
    """Frames [b, t, MELS] and their mask [b, t], false for padding → logits [b, t / 4, letters].

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
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, LETTERS + 1)
        self.register_buffer("speeds", rotary_speeds(dim, heads), persistent=False)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        x = self.enter(self.shorten(frames[:, None]).transpose(1, 2).flatten(2))
        angles = torch.arange(x.shape[1], device=x.device)[:, None, None] * self.speeds
        for block in self.blocks:
            x = block(x, angles, mask[:, ::4])
        return self.head(x)


class AsrJob(Job):
    """One Conformer in training; a sample is a second of audio.

    model_args: dim, layers, heads, hidden. Batches are those of `ResidentSpeech`.
    """

    resident = ResidentSpeech

    def build(self, spec: MemberSpec, device: torch.device) -> None:
        self.model = Conformer(**spec.job.model_args).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=spec.job.optimizer.lr)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """The CTC loss per letter."""
        frames, mask, letters, frame_counts, letter_counts = batch
        with self.autocast():
            logits = self.model(frames, mask)
        log_probabilities = logits.float().log_softmax(-1).transpose(0, 1)
        input_lengths = (frame_counts + 3) // 4
        return functional.ctc_loss(log_probabilities, letters, input_lengths, letter_counts)
