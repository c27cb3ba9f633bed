"""Image classifiers: construction by name, and their training and validation step."""

from importlib import import_module

import torch
from torch import Tensor, nn

from models import compat  # noqa: F401  (before timm)

import timm  # isort: skip
from timm.optim import create_optimizer_v2  # isort: skip
from timm.scheduler import CosineLRScheduler  # isort: skip


def build_model(name: str, classes: int, input_size: int, model_args: dict) -> nn.Module:
    """A timm model by its name, or `module:function` called as function(num_classes=…, **args).

    timm models with a fixed input size (ViT, CaiT) are built for `input_size` pixels.
    Raises RuntimeError for an unknown timm name, ImportError or AttributeError for the other kind.
    """
    if ":" in name:
        module, _, function = name.partition(":")
        return getattr(import_module(module), function)(num_classes=classes, **model_args)
    cfg = timm.get_pretrained_cfg(name)
    if cfg is not None and cfg.fixed_input_size and cfg.input_size[-1] != input_size:
        model_args = {"img_size": input_size, **model_args}
    return timm.create_model(name, num_classes=classes, **model_args)


def build_optimizer(model: nn.Module, settings: dict) -> torch.optim.Optimizer:
    """timm's optimizer of that name; biases and norms get no weight decay, as in timm's training.

    Raises ValueError for a schedule other than cosine or constant.
    """
    if settings.get("schedule") not in (None, "constant", "cosine"):
        raise ValueError(f"schedule {settings['schedule']!r}: allowed are cosine, constant")
    name = settings["name"]
    if name == "sgd" and not settings.get("nesterov"):
        name = "momentum"  # timm's name for SGD without Nesterov
    return create_optimizer_v2(
        model,
        opt=name,
        lr=settings["lr"],
        weight_decay=settings.get("weight_decay") or 0.0,
        momentum=settings.get("momentum") or 0.0,
    )


class VisionJob:
    """One classifier in training: batches are (images [b, 3, s, s] float32, labels [b] int64)."""

    metric = "accuracy"

    def __init__(self, spec: dict, device: torch.device):
        # On the device from the start: initialising 60 M weights on two cores takes a second.
        with torch.device(device):
            model = build_model(
                spec["model"], spec["classes"], spec["input_size"], spec.get("model_args") or {}
            )
        layout = torch.channels_last if spec["channels_last"] else torch.contiguous_format
        self.model = model.to(device, memory_format=layout).train()
        self.optimizer = build_optimizer(self.model, spec["optimizer"])
        self.criterion = nn.CrossEntropyLoss(label_smoothing=spec.get("label_smoothing") or 0.0)
        self.autocast = torch.autocast(
            device.type, dtype=torch.bfloat16, enabled=spec["precision"] == "bf16"
        )
        self.schedule = None
        if spec["optimizer"].get("schedule") == "cosine":
            epochs = spec["optimizer"]["schedule_epochs"]
            self.schedule = CosineLRScheduler(self.optimizer, t_initial=epochs)

    def set_epoch(self, epoch: int) -> None:
        """The learning rate of that epoch (0-based)."""
        if self.schedule is not None:
            self.schedule.step(epoch)

    def step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """One training step; the loss, a detached scalar on the device, not waited for."""
        images, labels = batch
        with self.autocast:
            loss = self.criterion(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.inference_mode()
    def evaluate(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """How many of the batch are classified right (top-1), a scalar on the device."""
        images, labels = batch
        with self.autocast:
            return (self.model(images).argmax(dim=1) == labels).sum()
