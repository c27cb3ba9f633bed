"""Image classifiers, built by name, and their training step."""

from importlib import import_module

import torch
from torch import Tensor, nn

from models import compat  # noqa: F401  (before timm)
from models.inputs import FileImages, ResidentImages, memory_format
from models.jobs.base import Job
from models.shared import SharedImages
from workflow.collocation.member.spec import MemberSpec

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
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained and pretrained.fixed_input_size and pretrained.input_size[-1] != input_size:
        model_args = {"img_size": input_size, **model_args}
    return timm.create_model(name, num_classes=classes, **model_args)


class VisionJob(Job):
    """One classifier in training: batches are (images [b, 3, s, s] float32, labels [b] int64)."""

    capturable = True
    resident = ResidentImages

    @classmethod
    def check(cls, spec: MemberSpec, dataset) -> None:
        """Raise ValueError if the images have more classes than the model."""
        classes = spec.job.classes
        if dataset.classes > classes:
            raise ValueError(f"{dataset.classes} classes of images, {classes} of the model")

    @classmethod
    def files(cls, dataset, spec: MemberSpec, device: torch.device) -> FileImages:
        input_class = SharedImages if spec.job.input.mode == "shared" else FileImages
        return input_class(dataset.files(spec.job.input_size), spec, device)

    def build(self, spec: MemberSpec, device: torch.device) -> None:
        training, settings = spec.job, spec.job.optimizer
        model = build_model(
            training.model, training.classes, training.input_size, training.model_args
        )
        self.model = model.to(device, memory_format=memory_format(spec)).train()
        # Biases and norms get no weight decay, as in timm's training. A fused optimizer, one
        # kernel, takes a learning rate that is on the device.
        self.optimizer = create_optimizer_v2(
            self.model,
            opt="sgd" if settings.nesterov else "momentum",  # as timm names them
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            **({"fused": True} if spec.implementation.cuda_graph else {}),
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=training.label_smoothing)
        self.schedule = None
        if settings.schedule == "cosine":
            self.schedule = CosineLRScheduler(self.optimizer, t_initial=settings.schedule_epochs)

    def set_epoch(self, epoch: int) -> None:
        if self.schedule is not None:
            self.schedule.step(epoch)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy with label smoothing."""
        images, labels = batch
        with self.autocast():
            return self.criterion(self.model(images), labels)
