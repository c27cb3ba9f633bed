"""A vision transformer of timm, whose images four loader processes augment."""

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from truth import scaled, tick

WORKERS = scaled(4, 2)
BATCH, PIXELS, CLASSES = scaled((64, 112, 100), (4, 32, 4))


class Images(Dataset):
    """Coloured noise: each class has a colour; a random crop is flipped at random."""

    def __init__(self, count):
        self.targets = torch.randint(CLASSES, (count,))
        self.colours = torch.randn(CLASSES, 3, 1, 1)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        target = self.targets[index]
        image = self.colours[target] + torch.randn(3, PIXELS + 16, PIXELS + 16)
        top, left, flip = torch.randint(17, (3,)).tolist()
        image = image[:, top : top + PIXELS, left : left + PIXELS]
        return (image.flip(2) if flip % 2 else image).contiguous(), target


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, depth, heads = scaled((192, 12, 3), (32, 2, 2))
    model = timm.models.VisionTransformer(
        img_size=PIXELS,
        patch_size=16,
        num_classes=CLASSES,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    loader = DataLoader(
        Images(scaled(50_000, 40)),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        pin_memory=device == "cuda",
        drop_last=True,
    )
    for epoch in range(10_000):
        for step, (images, targets) in enumerate(loader):
            images = images.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tick()
            if step % scaled(50, 5) == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
