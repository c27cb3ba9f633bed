"""A convolutional network in epochs, each followed by a validation, as trainers do it."""

import torch
import torch.nn.functional as F
from torch import nn
from truth import scaled, tick

TRAIN, VALIDATION = scaled((12_800, 12_800), (128, 128))
BATCH = scaled(64, 16)
CLASSES = 10


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        layers, before = [], 3
        for channels in (width, 2 * width, 4 * width, 8 * width):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
            layers.append(nn.MaxPool2d(2))
            before = channels
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))

    def training_step(self, batch):
        images, targets = batch
        return F.cross_entropy(self(images), targets)

    def validation_step(self, batch):
        images, targets = batch
        return (self(images).argmax(1) == targets).float().mean().item()


def dataset(count, device):
    """Noise on a pattern for each class."""
    patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    targets = torch.randint(CLASSES, (count,))
    images = patterns[targets] + 2 * torch.randn(count, 3, 32, 32)
    return images.to(device), targets.to(device)


def batches(images, targets, shuffle):
    order = torch.randperm(len(images)) if shuffle else torch.arange(len(images))
    for rows in order.to(images.device).split(BATCH):
        yield images[rows], targets[rows]


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Classifier(scaled(32, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train, validation = dataset(TRAIN, device), dataset(VALIDATION, device)
    for epoch in range(100_000):
        model.train()
        for batch in batches(*train, shuffle=True):
            loss = model.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tick()
        model.eval()
        with torch.no_grad():
            scores = [model.validation_step(b) for b in batches(*validation, shuffle=False)]
        accuracy = sum(scores) / len(scores)
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
