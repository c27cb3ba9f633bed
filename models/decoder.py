"""A language model: a decoder with RMSNorm, rotary positions and SwiGLU, in plain torch.

`Decoder.forward` is for training. `Cache` serves: prompts go into slots of a fixed memory of keys
and values, and one step gives every slot its next token, so that both can be CUDA graphs.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

ROTARY_BASE = 10_000.0


def rotary_speeds(dim: int, heads: int) -> Tensor:
    """Angle per position of each pair of a head's channels: [dim / heads / 2]."""
    return ROTARY_BASE ** -(torch.arange(0, dim // heads, 2) / (dim // heads))


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Turn x [b, t, heads, d] by the angles [t or b, ..., d/2] of its positions."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    turned = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.to(x.dtype)


class DecoderBlock(nn.Module):
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
        x = x + self.out(attend(rotate(q, angles), rotate(k, angles), v).flatten(2))
        gate, value = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * value)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each position to itself and those before it, [b, t, heads, d]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Decoder(nn.Module):
    """Tokens [b, t] int64 → logits [b, t, vocabulary]."""

    def __init__(self, vocabulary: int, dim: int, layers: int, heads: int, hidden: int):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, dim), nn.RMSNorm(dim)
        self.blocks = nn.ModuleList(DecoderBlock(dim, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.register_buffer("speeds", rotary_speeds(dim, heads), persistent=False)

    def angles(self, positions: Tensor) -> Tensor:
        """Rotary angles [..., 1 (of the heads), d/2] of positions [...]."""
        return (positions[..., None].float() * self.speeds.float())[..., None, :]

    def run(self, tokens: Tensor, positions: Tensor, attentions: list[Callable]) -> Tensor:
        """Logits, with an attention function for each block."""
        x, angles = self.embedding(tokens), self.angles(positions)
        for block, attend in zip(self.blocks, attentions, strict=True):
            x = block(x, angles, attend)
        return self.head(self.norm(x))

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.run(tokens, positions, [causal_attention] * len(self.blocks))


class Cache:
    """Keys and values of `slots` requests of up to `length` tokens, and the state of each request.

    tokens [slots]: each slot's newest token. lengths [slots]: how many tokens are in the cache.
    active [slots]: 1 while the slot serves a request. `prefill` and `step` read and write these
    tensors only.
    """

    def __init__(self, model: Decoder, slots: int, length: int):
        weight, heads = model.embedding.weight, model.blocks[0].heads
        shape = (slots, heads, length, weight.shape[1] // heads)
        self.model = model
        # For each block its keys and values, [slots, heads, length, d].
        self.memory = [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in model.blocks]
        zeros = torch.zeros(slots, dtype=torch.int64, device=weight.device)
        self.tokens, self.lengths, self.active = zeros, zeros.clone(), zeros.clone()
        self.slots = torch.arange(slots, device=weight.device)
        self.positions = torch.arange(length, device=weight.device)

    @property
    def bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.memory)

    def prefill(self, prompt: Tensor, slot: Tensor) -> None:
        """Take a prompt [1, t] into a slot [1], and give it its first token."""
        prompt_length = prompt.shape[1]

        def attention_into_cache(keys: Tensor, values: Tensor) -> Callable:
            """Attention of one layer that fills its cache of the slot first."""

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys[:, :, :prompt_length].index_copy_(0, slot, k.transpose(1, 2))
                values[:, :, :prompt_length].index_copy_(0, slot, v.transpose(1, 2))
                return causal_attention(q, k, v)

            return attend

        attentions = [attention_into_cache(keys, values) for keys, values in self.memory]
        logits = self.model.run(prompt, self.positions[:prompt_length], attentions)
        self.tokens.index_copy_(0, slot, logits[:, -1].argmax(-1))
        self.lengths.index_fill_(0, slot, prompt_length)
        self.active.index_fill_(0, slot, 1)

    def step(self) -> None:
        """Give every active slot its next token; the other slots stay as they are."""
        mask = (self.positions <= self.lengths[:, None])[:, None, None]

        def attention_over_cache(keys: Tensor, values: Tensor) -> Callable:
            """Attention of one layer over its cache of all slots."""

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys[self.slots, :, self.lengths] = k[:, 0]
                values[self.slots, :, self.lengths] = v[:, 0]
                attended = functional.scaled_dot_product_attention(
                    q.transpose(1, 2), keys, values, attn_mask=mask
                )
                return attended.transpose(1, 2)

            return attend

        attentions = [attention_over_cache(keys, values) for keys, values in self.memory]
        logits = self.model.run(self.tokens[:, None], self.lengths[:, None], attentions)
        new_tokens = torch.where(self.active > 0, logits[:, 0].argmax(-1), self.tokens)
        self.tokens.copy_(new_tokens)
        self.lengths.add_(self.active)
