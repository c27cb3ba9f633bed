"""Image classifiers: construction by name, and their training step."""

from importlib import import_module

import torch
from torch import Tensor, nn

from models import compat  # noqa: F401  (before timm)
from models.inputs import FileImages, ResidentImages, layout_of
from models.jobs.base import Job
from models.shared import SharedImages

import timm  # isort: skip
from timm.optim import create_optimizer_v2  # isort: skip
from timm.scheduler import CosineLRScheduler  # isort: skip


def build_model(name: str, classes: int, input_size: int, model_args: dict) -> nn.Module:
    """A timm model by its name, or `module:function` called as function(num_classes=…, **args).

    timm models with a fixed input size (ViT, CaiT) are built for `input_size` pixels.
    """
    if ":" in name:
        module, _, function = name.partition(":")
        return getattr(import_module(module), function)(num_classes=classes, **model_args)
    cfg = timm.get_pretrained_cfg(name)
    if cfg is not None and cfg.fixed_input_size and cfg.input_size[-1] != input_size:
        model_args = {"img_size": input_size, **model_args}
    return timm.create_model(name, num_classes=classes, **model_args)


class VisionJob(Job):
    """One classifier in training: batches are (images [b, 3, s, s] float32, labels [b] int64)."""

    capturable = True
    resident = ResidentImages

    @classmethod
    def check(cls, spec: dict, dataset) -> None:
        """Raise ValueError if the images are of more classes than the model has."""
        if dataset.classes > spec["classes"]:
            raise ValueError(f"{dataset.classes} classes of images, {spec['classes']} of the model")

    @classmethod
    def files(cls, dataset, spec: dict, device: torch.device) -> FileImages:
        read = SharedImages if spec["input"]["mode"] == "shared" else FileImages
        return read(dataset.files(spec["input_size"]), spec, device)

    def build(self, spec: dict, device: torch.device) -> None:
        args, settings = spec.get("model_args") or {}, spec["optimizer"]
        model = build_model(spec["model"], spec["classes"], spec["input_size"], args)
        self.model = model.to(device, memory_format=layout_of(spec)).train()
        # Biases and norms get no weight decay, as in timm's training. Fused, in one kernel, it
        # takes a learning rate that lies on the device.
        self.optimizer = create_optimizer_v2(
            self.model,
            opt="sgd" if settings["nesterov"] else "momentum",  # as timm names them
            lr=settings["lr"],
            weight_decay=settings["weight_decay"],
            momentum=settings["momentum"],
            **({"fused": True} if spec["cuda_graph"] else {}),
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=spec.get("label_smoothing") or 0.0)
        self.schedule = None
        if settings["schedule"] == "cosine":
            self.schedule = CosineLRScheduler(self.optimizer, t_initial=settings["schedule_epochs"])

    def set_epoch(self, epoch: int) -> None:
        if self.schedule is not None:
            self.schedule.step(epoch)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy with label smoothing."""
        images, labels = batch
        with self.autocast():
            return self.criterion(self.model(images), labels)
