"""DLRM in plain PyTorch: embedding bags and dense features, joined by pairwise dot products."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.criteo import TABLE_ROWS
from models.inputs import ResidentRows
from models.jobs.base import Job, register

DENSE_FEATURES = 13
BLOCK = 1_048_573  # weights drawn of a table; a prime


def table_rows(max_rows: int | None = None, tables: list[int] | None = None) -> list[int]:
    """Rows of each embedding table: the given or the published sizes, cut at `max_rows`."""
    rows = list(tables or TABLE_ROWS)
    return [min(n, max_rows) for n in rows] if max_rows else rows


def _mlp(sizes: list[int], last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=(2 / (fan_in + fan_out)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / fan_out) ** 0.5)
        layers += [linear, nn.ReLU(inplace=True)]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def _table(n: int, dim: int, device: torch.device) -> Tensor:
    """Weights [n, dim] on the device, uniform within 1/√n.

    Seven billion of them cannot be drawn on the CPU in seconds, and a GPU's draw may depend on its
    SMs. So a block is drawn on the CPU and laid out again and again. Its length is a prime, so
    that the rows of a large table begin at different places in it: row i is row i + BLOCK again.
    """
    weights = torch.empty(n, dim, device=device)
    flat = weights.view(-1)
    block = torch.empty(min(len(flat), BLOCK)).uniform_(-(n**-0.5), n**-0.5).to(device)
    times, rest = divmod(len(flat), len(block))
    flat[: times * len(block)].view(times, -1).copy_(block.expand(times, -1))
    flat[len(flat) - rest :] = block[:rest]
    return weights


class Dlrm(nn.Module):
    """dense [b, 13] float32 and sparse [b, tables] int64 row numbers → logits [b].

    `bottom` and `top` list the layers' output widths; the bottom MLP ends at `dim`, the top at 1.
    Gradients of the tables are sparse. The tables are made on `device`, all else on the CPU.
    """

    def __init__(
        self, dim: int, bottom: list[int], top: list[int], rows: list[int], device: torch.device
    ):
        super().__init__()
        if bottom[-1] != dim or top[-1] != 1:
            raise ValueError(f"bottom must end in dim={dim} and top in 1: got {bottom}, {top}")
        self.bottom = _mlp([DENSE_FEATURES, *bottom], last_relu=True)
        self.tables = nn.ModuleList(
            # given as _weight, or EmbeddingBag would fill 28 GB with normals first
            nn.EmbeddingBag(n, dim, mode="sum", sparse=True, _weight=_table(n, dim, device))
            for n in rows
        )
        features = len(rows) + 1
        lower = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", lower[0] * features + lower[1], persistent=False)
        self.top = _mlp([dim + self.pairs.numel(), *top], last_relu=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        one_each = torch.arange(len(sparse), device=sparse.device)
        columns = sparse.t().contiguous()
        bags = [table(ids, one_each) for table, ids in zip(self.tables, columns, strict=True)]
        features = torch.stack([x, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.pairs)], dim=1)).squeeze(1)


@register("dlrm")
class DlrmJob(Job):
    """One DLRM in training with plain SGD and binary cross entropy.

    Batches are (dense [b, 13] float32, sparse [b, tables] int64 raw ids, label [b] float32); an
    id is taken modulo the rows of its table. model_args: dim, bottom, top, max_rows, tables.
    Sparse gradients take no weight decay, and a momentum's buffer would be a second copy of the
    tables: the schema allows neither.
    """

    metric = "validation_loss"
    resident = ResidentRows

    def build(self, spec: dict, device: torch.device) -> None:
        args = spec["model_args"]
        rows = table_rows(args.get("max_rows"), args.get("tables"))
        model = Dlrm(args["dim"], args["bottom"], args["top"], rows, device)
        self.model = model.to(device).train()
        self.rows = torch.tensor(rows, device=device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=spec["optimizer"]["lr"])

    def loss(self, batch: tuple[Tensor, Tensor, Tensor], reduction: str = "mean") -> Tensor:
        """Binary cross entropy."""
        dense, sparse, label = batch
        ids = sparse[:, : len(self.rows)] % self.rows
        with self.autocast:
            logits = self.model(dense, ids)
        return functional.binary_cross_entropy_with_logits(
            logits.float(), label, reduction=reduction
        )

    @torch.inference_mode()
    def evaluate(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The batch's summed loss, a scalar on the device."""
        return self.loss(batch, "sum")
