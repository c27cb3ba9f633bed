"""A language model: a decoder of today's kind (RMSNorm, rotary positions, SwiGLU), in plain torch.

`forward` is for training. `Cache` serves: prompts go into slots of a fixed memory of keys and
values, and one step gives every slot its next token, so that both are CUDA graphs.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

BASE = 10_000.0  # of the rotary positions


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """x [b, t, heads, d] turned by angles [t or b, ..., d/2] of its positions."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.to(x.dtype)


class Block(nn.Module):
    """Attention and a gated layer; `attend` maps q, k, v [b, t, heads, d] to [b, t, heads, d]."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(dim), nn.RMSNorm(dim)])
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, angles: Tensor, attend: Callable) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(attend(rotated(q, angles), rotated(k, angles), v).flatten(2))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * value)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to oneself and what came before."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Decoder(nn.Module):
    """Tokens [b, t] int64 → logits [b, t, vocabulary]."""

    def __init__(self, vocabulary: int, dim: int, layers: int, heads: int, hidden: int):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, dim), nn.RMSNorm(dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        steps = torch.arange(0, dim // heads, 2) / (dim // heads)
        self.register_buffer("speeds", BASE**-steps, persistent=False)

    def angles(self, positions: Tensor) -> Tensor:
        """[..., 1 (of the heads), d/2] of positions [...]."""
        return (positions[..., None].float() * self.speeds.float())[..., None, :]

    def run(self, tokens: Tensor, positions: Tensor, attend: list[Callable]) -> Tensor:
        x, angles = self.embedding(tokens), self.angles(positions)
        for block, how in zip(self.blocks, attend, strict=True):
            x = block(x, angles, how)
        return self.head(self.norm(x))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.run(tokens, positions, [causal] * len(self.blocks))


class Cache:
    """Keys and values of `slots` requests of up to `length` tokens, and each one's state.

    tokens [slots]: each slot's newest token; lengths [slots]: how many stand in the cache; active
    [slots]: 1 while it serves a request. `prefill` and `step` read and write these tensors only.
    """

    def __init__(self, model: Decoder, slots: int, length: int):
        weight = model.embedding.weight
        block, like = model.blocks[0], {"device": weight.device, "dtype": weight.dtype}
        shape = (slots, block.heads, length, weight.shape[1] // block.heads)
        self.model = model
        self.kept = [(torch.zeros(shape, **like), torch.zeros(shape, **like)) for _ in model.blocks]
        self.tokens, self.lengths, self.active = (
            torch.zeros(slots, dtype=torch.int64, device=weight.device) for _ in range(3)
        )
        self.every = torch.arange(slots, device=weight.device)
        self.places = torch.arange(length, device=weight.device)

    @property
    def bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.kept)

    def prefill(self, prompt: Tensor, slot: Tensor) -> None:
        """Take a prompt [1, t] into a slot [1], and give it its first token."""

        def attend(kept: tuple[Tensor, Tensor]) -> Callable:
            def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                for memory, new in zip(kept, (k, v), strict=True):
                    memory[:, :, : prompt.shape[1]].index_copy_(0, slot, new.transpose(1, 2))
                return causal(q, k, v)

            return attended

        positions = self.places[: prompt.shape[1]]
        logits = self.model.run(prompt, positions, [attend(kept) for kept in self.kept])
        self.tokens.index_copy_(0, slot, logits[:, -1].argmax(-1))
        self.lengths.index_fill_(0, slot, prompt.shape[1])
        self.active.index_fill_(0, slot, 1)

    def step(self) -> None:
        """Give every slot its next token; those that are not active stay as they are."""
        seen = (self.places <= self.lengths[:, None])[:, None, None]

        def attend(kept: tuple[Tensor, Tensor]) -> Callable:
            def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                for memory, new in zip(kept, (k, v), strict=True):
                    memory[self.every, :, self.lengths] = new[:, 0]
                return functional.scaled_dot_product_attention(
                    q.transpose(1, 2), *kept, attn_mask=seen
                ).transpose(1, 2)

            return attended

        how = [attend(kept) for kept in self.kept]
        logits = self.model.run(self.tokens[:, None], self.lengths[:, None], how)
        new = torch.where(self.active > 0, logits[:, 0].argmax(-1), self.tokens)
        self.tokens.copy_(new)
        self.lengths.add_(self.active)
