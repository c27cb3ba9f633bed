"""The network, and the texts that it learns from."""

import torch
from torch import nn


class TextClassifier(nn.Module):
    def __init__(self, words, width, classes):
        super().__init__()
        self.words = nn.EmbeddingBag(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(6))
        self.head = nn.Linear(width, classes)

    def forward(self, texts):
        x = self.words(texts)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.relu(layer(norm(x)))
        return self.head(x)


def texts(count, length, words, classes):
    """Random words, half of which are of the text's class."""
    targets = torch.randint(classes, (count,))
    any_word = torch.randint(words, (count, length))
    of_class = any_word // classes * classes + targets[:, None]
    is_of_class = torch.rand(count, length) < 0.5
    return torch.where(is_of_class, of_class.clamp(max=words - 1), any_word), targets
