"""DLRM in plain PyTorch: embedding tables and dense features, joined by pairwise dot products."""

from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.data.criteo import DENSE, TABLE_ROWS
from models.inputs import ResidentClicks
from models.jobs.base import Job
from workflow.collocation.member.spec import MemberSpec

BLOCK = 1_048_573  # weights of a table that are drawn at random; a prime


def _mlp(sizes: list[int], last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=(2 / (fan_in + fan_out)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / fan_out) ** 0.5)
        layers += [linear, nn.ReLU(inplace=True)]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def _fill(weights: Tensor) -> Tensor:
    """Make the weights [n, dim] of a table uniform within 1/√n.

    Seven billion of them cannot be drawn on the CPU in seconds, and what a GPU draws may depend on
    its SMs. So a block is drawn on the CPU and laid out again and again. Its length is a prime, so
    that the rows of a large table begin at different places in it: row i is row i + BLOCK again.
    """
    flat, bound = weights.view(-1), len(weights) ** -0.5
    block = torch.empty(min(len(flat), BLOCK)).uniform_(-bound, bound).to(weights.device)
    repeats, remainder = divmod(len(flat), len(block))
    flat[: repeats * len(block)].view(repeats, -1).copy_(block.expand(repeats, -1))
    flat[len(flat) - remainder :] = block[:remainder]
    return weights


class Dlrm(nn.Module):
    """dense [b, 13] float32 and embeddings looked up in the tables → logits [b].

    `bottom` and `top` list the layers' output widths; the bottom MLP ends at `dim`, the top at 1.
    Gradients of the tables are sparse. The tables are made on `device`, all else on the CPU.

    joined: the tables are one tensor, `weights`, without a gradient, and a lookup is one gather.
    The job then adds the gradient of the rows itself, which can be captured as a CUDA graph.
    """

    def __init__(self, args: dict, rows: list[int], device: torch.device, joined: bool):
        super().__init__()
        dim, bottom, top = args["dim"], args["bottom"], args["top"]
        if bottom[-1] != dim or top[-1] != 1:
            raise ValueError(f"bottom must end in dim={dim} and top in 1: got {bottom}, {top}")
        self.bottom = _mlp([DENSE, *bottom], last_relu=True)
        self.joined = joined
        if joined:
            weights = torch.empty(sum(rows), dim, device=device)
            for table in weights.split(rows):
                _fill(table)
            self.weights = nn.Parameter(weights, requires_grad=False)
            first_rows = torch.tensor([0, *accumulate(rows)][:-1])
            self.register_buffer("first_rows", first_rows, persistent=False)
        else:
            self.tables = nn.ModuleList()
            for n in rows:
                # Without _weight, EmbeddingBag would fill 28 GB with normal numbers first.
                weights = _fill(torch.empty(n, dim, device=device))
                table = nn.EmbeddingBag(n, dim, mode="sum", sparse=True, _weight=weights)
                self.tables.append(table)
        features = len(rows) + 1
        lower = torch.tril_indices(features, features, offset=-1)
        self.register_buffer("pairs", lower[0] * features + lower[1], persistent=False)
        self.top = _mlp([dim + self.pairs.numel(), *top], last_relu=False)

    def joined_rows(self, ids: Tensor) -> Tensor:
        """Rows [b * tables] of `weights` for row numbers [b, tables] of the tables."""
        return (ids + self.first_rows).flatten()

    def look_up(self, ids: Tensor) -> Tensor | list[Tensor]:
        """Embeddings of row numbers [b, tables], as `forward` takes them.

        Joined: one tensor [b, tables, dim]; else a list of [b, dim].
        """
        if self.joined:
            return self.weights.index_select(0, self.joined_rows(ids)).view(*ids.shape, -1)
        offsets = torch.arange(len(ids), device=ids.device)  # one row in each bag
        columns = ids.t().contiguous()
        return [table(column, offsets) for table, column in zip(self.tables, columns, strict=True)]

    def forward(self, dense: Tensor, embeddings: Tensor | list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        if self.joined:
            features = torch.cat([x.unsqueeze(1), embeddings], dim=1)
        else:
            features = torch.stack([x, *embeddings], dim=1)
        products = torch.bmm(features, features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products.index_select(1, self.pairs)], dim=1)).squeeze(1)


class DlrmJob(Job):
    """One DLRM in training with plain SGD and binary cross entropy.

    Batches are (dense [b, 13] float32, sparse [b, tables] int64 raw ids, label [b] float32); an
    id is taken modulo the rows of its table. model_args: dim, bottom, top, max_rows, tables.

    A step that is captured adds the gradient of what was looked up to the rows itself, as often as
    each row occurs: that is what SGD does with a sparse gradient, whose shape a graph cannot hold.
    """

    capturable = True
    resident = ResidentClicks

    def build(self, spec: MemberSpec, device: torch.device) -> None:
        args = spec.job.model_args
        max_rows = args.get("max_rows")
        rows = [min(n, max_rows or n) for n in args.get("tables") or TABLE_ROWS]
        joined, self.lr = spec.implementation.cuda_graph, spec.job.optimizer.lr
        self.model = Dlrm(args, rows, device, joined).to(device).train()
        self.rows = torch.tensor(rows, device=device)
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.SGD(weights, lr=self.lr, fused=joined or None)

    def row_numbers(self, sparse: Tensor) -> Tensor:
        """Row numbers [b, tables] of raw ids."""
        return sparse[:, : len(self.rows)] % self.rows

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Binary cross entropy. In place of raw ids, the batch may hold their embeddings."""
        dense, sparse, label = batch
        with self.autocast():
            embeddings = sparse
            if not sparse.is_floating_point():
                embeddings = self.model.look_up(self.row_numbers(sparse))
            logits = self.model(dense, embeddings)
        return functional.binary_cross_entropy_with_logits(logits.float(), label)

    def step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if not self.model.joined:
            return super().step(batch)
        dense, sparse, label = batch
        ids = self.row_numbers(sparse)
        embeddings = self.model.look_up(ids).requires_grad_()
        loss = super().step((dense, embeddings, label))
        gradients = embeddings.grad.flatten(0, 1)
        self.model.weights.index_add_(0, self.model.joined_rows(ids), gradients, alpha=-self.lr)
        return loss
