"""`python -m bench.limited_client products|training`: one process under a limit of SMs.

It prints JSON lines: what it is, then one for each product, held against float64, or for each step
of training. The limit comes from its environment.
"""

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.decoder import Decoder
from models.device import (
    FORMATS,
    REPEATS,
    TOLERANCE,
    device_facts,
    relative_error,
)
from workflow.collocation.process_lifetime import end_with_starter

SIZES = (256, 512, 1024, 2048, 3072, 4096, 5120, 6144)  # of square matrices
FLOAT64_TOLERANCE = 1e-9
DTYPES = FORMATS | {"fp32": torch.float32, "float64": torch.float64}
WIDTHS = (256, 512, 1024)  # of the models that are trained
TRAINING_S = 15.0  # at most, for each width
SEQUENCES, LENGTH = 16, 256  # of a batch, in bytes of text
TEXTS = Path(__file__).parents[1] / "docs"


class Operation(NamedTuple):
    """A product of tensors; shapes: of its inputs, by size."""

    compute: Callable[..., Tensor | tuple[Tensor, ...]]
    shapes: Callable[[int], list[tuple[int, ...]]]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("bf16", "fp16", "tf32")


def linear_backward(inputs: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Gradients of a linear layer by its inputs and its weight."""
    leaves = inputs.detach().requires_grad_(), weight.detach().requires_grad_()
    return torch.autograd.grad(functional.linear(*leaves), leaves, gradient)


def convolution(images: Tensor, weight: Tensor) -> Tensor:
    """Convolution of images in channels_last, as the study's models have them."""
    tensors = (tensor.to(memory_format=torch.channels_last) for tensor in (images, weight))
    return functional.conv2d(*tensors, padding="same")


OPERATIONS = {
    "matmul": Operation(torch.matmul, lambda n: [(n, n)] * 2, SIZES, tuple(DTYPES)),
    "bmm": Operation(torch.bmm, lambda n: [(8, n, n)] * 2, (128, 512, 1024, 2048)),
    "linear backward": Operation(
        linear_backward, lambda n: [(4096, n), (n, n), (4096, n)], (512, 1024, 2048, 4096)
    ),
    "convolution 1x1": Operation(
        convolution, lambda n: [(64, n, 28, 28), (n, n, 1, 1)], (128, 256, 512, 1024)
    ),
    "convolution 3x3": Operation(
        convolution, lambda n: [(64, n, 28, 28), (n, n, 3, 3)], (128, 256, 512, 1024)
    ),
    "SDPA": Operation(
        functional.scaled_dot_product_attention, lambda n: [(2, 8, n, 64)] * 3, (512, 1024, 2048)
    ),
}


def float64_error(first: Tensor, second: Tensor, product: Tensor) -> float:
    """Relative error of a product of float64 matrices, times a random vector of 1 and -1.

    Sums take no matrix product, so the references of all others are not taken on trust.
    """
    signs = torch.randn(product.shape[1], device=product.device).sign().double()
    reference = (first * (second * signs).sum(1)).sum(1)
    return relative_error((product * signs).sum(1), reference)


def tensors_of(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """An operation's results, however many it has."""
    return value if isinstance(value, tuple) else (value,)


def errors_of(operation: Operation, dtype: str, size: int, device: torch.device) -> list[float]:
    """Relative error of each repeat of a product, of tensors that the size alone decides."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    generator = torch.Generator(device).manual_seed(size)
    inputs = [
        torch.randn(shape, generator=generator, device=device).to(DTYPES[dtype])
        for shape in operation.shapes(size)
    ]
    if dtype == "float64":
        return [float64_error(*inputs, operation.compute(*inputs)) for _ in range(REPEATS)]
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN's kernels are on trial
        references = tensors_of(operation.compute(*(tensor.double() for tensor in inputs)))
    errors = []
    for _ in range(REPEATS):
        values = tensors_of(operation.compute(*inputs))
        of_tensors = torch.tensor(list(map(relative_error, values, references)))
        errors.append(of_tensors.max().item())  # torch's max keeps NaN, Python's does not
    return errors


def products(device: torch.device, largest: int) -> Iterator[dict]:
    """Each product up to a size: operation, dtype, size, largest error, and how many were wrong."""
    for name, operation in OPERATIONS.items():
        for dtype in operation.dtypes:
            tolerance = FLOAT64_TOLERANCE if dtype == "float64" else TOLERANCE
            for size in (size for size in operation.sizes if size <= largest):
                errors = errors_of(operation, dtype, size, device)
                yield {
                    "operation": name,
                    "dtype": dtype,
                    "size": size,
                    "relative_error": torch.tensor(errors).max().item(),
                    "wrong_repeats": sum(not error <= tolerance for error in errors),  # NaN, too
                    "repeats": REPEATS,
                }


def training(device: torch.device, steps: int) -> Iterator[dict]:
    """Train language models in bf16 on the bytes of this project's texts: loss of each step.

    The seed decides weights and batches, so limits differ by what the GPU computes alone.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    raw = b"".join(path.read_bytes() for path in sorted(TEXTS.glob("*.md")))
    text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
    for width in WIDTHS:
        torch.manual_seed(0)
        model = Decoder(256, width, layers=4, heads=width // 64, hidden=4 * width).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        deadline = time.monotonic() + TRAINING_S
        for step in range(steps):
            starts = torch.randint(len(text) - LENGTH, (SEQUENCES, 1))
            batch = text[starts + torch.arange(LENGTH + 1)].to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            yield {"width": width, "step": step, "loss": loss.item()}
            if time.monotonic() > deadline:
                break


def cublas_version() -> str | None:
    """Version of the cuBLAS that torch has loaded; None where it has none."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        version = library.cublasLtGetVersion()
        return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"
    return None


def main() -> None:
    """The command line."""
    end_with_starter()
    parser = argparse.ArgumentParser("python -m bench.limited_client", description=__doc__)
    parser.add_argument("work", choices=["products", "training"])
    parser.add_argument("--largest", type=int, default=max(SIZES), help="size of a product")
    parser.add_argument("--steps", type=int, default=300, help="of training, for each width")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.zeros(1, device=device)  # makes the context
    # It makes its own products, and needs none of those that members make.
    facts = {"sm_count": device_facts(device, ())["sm_count"], "torch": torch.__version__}
    print(json.dumps(facts | {"cublas": cublas_version()}), flush=True)
    is_training = args.work == "training"
    lines = training(device, args.steps) if is_training else products(device, args.largest)
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
