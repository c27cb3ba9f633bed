"""The command line of the package."""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from truth import scaled, tick

from .model import TextClassifier, texts


def main(argv=None):
    parser = argparse.ArgumentParser("textclass")
    parser.add_argument("--batch", type=int, default=scaled(512, 16))
    parser.add_argument("--width", type=int, default=scaled(1024, 16))
    parser.add_argument("--texts", type=int, default=scaled(100_000, 200))
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    words, length, classes = scaled((50_000, 64, 20), (100, 8, 4))
    loader = DataLoader(
        TensorDataset(*texts(args.texts, length, words, classes)),
        batch_size=args.batch,
        shuffle=True,
        pin_memory=device == "cuda",
        drop_last=True,
    )
    model = TextClassifier(words, args.width, classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(100_000):
        for batch, targets in loader:
            loss = F.cross_entropy(model(batch.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tick()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
