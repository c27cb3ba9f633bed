"""DLRM in plain PyTorch: embedding bags and dense features, joined by pairwise dot products."""

from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.criteo import TABLE_ROWS
from models.inputs import ResidentRows
from models.jobs.base import Job

DENSE_FEATURES = 13
BLOCK = 1_048_573  # weights drawn of a table; a prime


def _mlp(sizes: list[int], last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=(2 / (fan_in + fan_out)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / fan_out) ** 0.5)
        layers += [linear, nn.ReLU(inplace=True)]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def _fill(weights: Tensor) -> Tensor:
    """A table's weights [n, dim], made uniform within 1/√n.

    Seven billion of them cannot be drawn on the CPU in seconds, and a GPU's draw may depend on its
    SMs. So a block is drawn on the CPU and laid out again and again. Its length is a prime, so
    that the rows of a large table begin at different places in it: row i is row i + BLOCK again.
    """
    flat, bound = weights.view(-1), len(weights) ** -0.5
    block = torch.empty(min(len(flat), BLOCK)).uniform_(-bound, bound).to(weights.device)
    times, rest = divmod(len(flat), len(block))
    flat[: times * len(block)].view(times, -1).copy_(block.expand(times, -1))
    flat[len(flat) - rest :] = block[:rest]
    return weights


class Dlrm(nn.Module):
    """dense [b, 13] float32 and what was looked up in the tables → logits [b].

    `bottom` and `top` list the layers' output widths; the bottom MLP ends at `dim`, the top at 1.
    Gradients of the tables are sparse. The tables are made on `device`, all else on the CPU.

    joined: the tables lie in one, `weights`, and take no gradient. Looking up is then one gather;
    who trains adds the gradient of the rows to them, which can be captured as a graph.
    """

    def __init__(self, args: dict, rows: list[int], device: torch.device, joined: bool):
        super().__init__()
        dim, bottom, top = (args[name] for name in ("dim", "bottom", "top"))
        if bottom[-1] != dim or top[-1] != 1:
            raise ValueError(f"bottom must end in dim={dim} and top in 1: got {bottom}, {top}")
        self.bottom = _mlp([DENSE_FEATURES, *bottom], last_relu=True)
        self.joined = joined
        if joined:
            weights = torch.empty(sum(rows), dim, device=device)
            for table in weights.split(rows):
                _fill(table)
            self.weights = nn.Parameter(weights, requires_grad=False)
            first = torch.tensor([0, *accumulate(rows)][:-1])
            self.register_buffer("first", first, persistent=False)
        else:
            weights = (_fill(torch.empty(n, dim, device=device)) for n in rows)
            self.tables = nn.ModuleList(
                # given as _weight, or EmbeddingBag would fill 28 GB with normals first
                nn.EmbeddingBag(*w.shape, mode="sum", sparse=True, _weight=w)
                for w in weights
            )
        features = len(rows) + 1
        lower = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", lower[0] * features + lower[1], persistent=False)
        self.top = _mlp([dim + self.pairs.numel(), *top], last_relu=False)

    def places(self, ids: Tensor) -> Tensor:
        """Rows [b * tables] of `weights` that row numbers [b, tables] of the tables stand for."""
        return (ids + self.first).flatten()

    def look_up(self, ids: Tensor) -> Tensor | list[Tensor]:
        """Weights of these rows [b, tables], as `forward` takes them: joined, or table by table."""
        if self.joined:
            return self.weights.index_select(0, self.places(ids)).view(*ids.shape, -1)
        one_each = torch.arange(len(ids), device=ids.device)
        columns = ids.t().contiguous()
        return [table(own, one_each) for table, own in zip(self.tables, columns, strict=True)]

    def forward(self, dense: Tensor, rows: Tensor | list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        if self.joined:
            features = torch.cat([x.unsqueeze(1), rows], dim=1)
        else:
            features = torch.stack([x, *rows], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.pairs)], dim=1)).squeeze(1)


class DlrmJob(Job):
    """One DLRM in training with plain SGD and binary cross entropy.

    Batches are (dense [b, 13] float32, sparse [b, tables] int64 raw ids, label [b] float32); an
    id is taken modulo the rows of its table. model_args: dim, bottom, top, max_rows, tables.

    A step that is captured adds the gradient of what was looked up to the rows itself, each as
    often as it was: what SGD does with a sparse gradient, whose shape a graph could not hold.
    """

    capturable = True
    resident = ResidentRows

    def build(self, spec: dict, device: torch.device) -> None:
        args = spec["model_args"]
        most = args.get("max_rows")
        rows = [min(n, most or n) for n in args.get("tables") or TABLE_ROWS]
        joined, self.lr = spec["cuda_graph"], spec["optimizer"]["lr"]
        self.model = Dlrm(args, rows, device, joined).to(device).train()
        self.rows = torch.tensor(rows, device=device)
        trained = (each for each in self.model.parameters() if each.requires_grad)
        self.optimizer = torch.optim.SGD(trained, lr=self.lr, fused=joined or None)

    def ids(self, sparse: Tensor) -> Tensor:
        """Row numbers [b, tables] of raw ids."""
        return sparse[:, : len(self.rows)] % self.rows

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Binary cross entropy. In place of raw ids the batch may hold what they look up."""
        dense, sparse, label = batch
        with self.autocast():
            rows = sparse if sparse.is_floating_point() else self.model.look_up(self.ids(sparse))
            logits = self.model(dense, rows)
        return functional.binary_cross_entropy_with_logits(logits.float(), label)

    def step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if not self.model.joined:
            return super().step(batch)
        dense, sparse, label = batch
        ids = self.ids(sparse)
        rows = self.model.look_up(ids).requires_grad_()
        loss = super().step((dense, rows, label))
        added = rows.grad.flatten(0, 1)
        self.model.weights.index_add_(0, self.model.places(ids), added, alpha=-self.lr)
        return loss
