"""The census sample in the fastest loop that one can write by hand in PyTorch; runs in `.bench/torch`.

Forward, loss, backward and both optimizers in one compiled graph without a dense gradient of the wide table; Ftrl and
Adagrad written out; batches gathered inside the graph from rows encoded ahead of time and in memory, so that only their
numbers come from outside; called from C++, and guards that held twice are not checked again.
`--steps-per-call` puts several steps into one graph.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers import census_rows, scores, wide_deep
from benchmarks.peers.report import Pace, Report, parser
from benchmarks.peers.wide_deep import DEEP_RATE, START, WIDE_RATE


class Rows(NamedTuple):
    """Encoded rows: `wide` and `embedded` ids, `dense` numbers, `labels`."""

    wide: Tensor
    dense: Tensor
    embedded: Tensor
    labels: Tensor

    def take(self, places: Tensor) -> Rows:
        """Some of them."""
        return Rows(*(values.index_select(0, places) for values in self))


class Ftrl:
    """The wide table, one weight a row, with Ftrl's state of each."""

    def __init__(self, rows: int) -> None:
        self.weights, self.z, self.sums = torch.zeros(rows), torch.zeros(rows), torch.zeros(rows)
        self.n = torch.full((rows,), START)

    def update(self, ids: Tensor, weights: Tensor, gradients: Tensor) -> None:
        """Of the rows of `ids`, each of which may occur several times."""
        # index_copy_ and not scatter_, of which the compiler makes a copy of the whole table.
        self.sums.index_fill_(0, ids, 0.0)
        self.sums.index_add_(0, ids, gradients)
        gradient, n = self.sums.index_select(0, ids), self.n.index_select(0, ids)
        new_n = n + gradient * gradient
        z = self.z.index_select(0, ids) + gradient - (new_n.sqrt() - n.sqrt()) / WIDE_RATE * weights
        self.n.index_copy_(0, ids, new_n)
        self.z.index_copy_(0, ids, z)
        self.weights.index_copy_(0, ids, -z * WIDE_RATE / new_n.sqrt())


class Deep(nn.Module):
    """Logits, ``[N]``, of dense inputs and embedded ids, and the bias of both halves."""

    def __init__(self) -> None:
        super().__init__()
        whole = wide_deep.WideDeep()
        self.embeddings, self.deep, self.bias = whole.embeddings, whole.deep, whole.bias

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        hidden = torch.cat([dense, self.embeddings(embedded).flatten(1)], dim=1)
        logits: Tensor = self.deep(hidden)
        return logits.squeeze(1) + self.bias


class Training:
    """The model, its state, and its step of `batch` training rows; `steps_per_call` steps are one graph."""

    def __init__(self, rows: Rows, *, batch: int, steps_per_call: int) -> None:
        self.wide, self.deep = Ftrl(census_rows.WIDE_ROWS), Deep()
        self._rows = rows
        self._batch = batch
        self._parameters = list(self.deep.parameters())
        self._sums = [torch.full_like(parameter, START, requires_grad=False) for parameter in self._parameters]
        self._steps_per_call = steps_per_call
        self._compiled = torch.compile(self._steps, fullgraph=True, dynamic=False, options={"cpp_wrapper": True})

    def __call__(self, places: Tensor) -> Tensor:
        """Takes the steps on the rows at `places`, int64 ``[steps_per_call * batch]``; gives the last one's loss."""
        loss: Tensor = self._compiled(places)
        return loss

    def _steps(self, places: Tensor) -> Tensor:
        losses = [self._step(self._rows.take(some)) for some in torch.split(places, self._batch)]
        return losses[-1]

    def _step(self, batch: Rows) -> Tensor:
        ids = batch.wide.flatten()
        touched = self.wide.weights.index_select(0, ids).requires_grad_()
        logits = self.deep(batch.dense, batch.embedded) + touched.view_as(batch.wide).sum(1)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
        *gradients, of_touched = torch.autograd.grad(loss, [*self._parameters, touched])
        with torch.no_grad():
            for parameter, sums, gradient in zip(self._parameters, self._sums, gradients, strict=True):
                sums.addcmul_(gradient, gradient)
                parameter.sub_(DEEP_RATE * gradient * sums.rsqrt())
            self.wide.update(ids, touched.detach(), of_touched)
        return loss.detach()

    def probabilities(self, rows: Rows) -> Tensor:
        """Of many rows at once, not compiled."""
        with torch.no_grad():
            logits: Tensor = self.deep(rows.dense, rows.embedded) + self.wide.weights[rows.wide].sum(1)
            return logits.sigmoid()


def read(file: Any) -> Rows:
    """All rows of a file."""
    return Rows(*wide_deep.dataset(census_rows.read(file)).tensors)


def main() -> None:
    """Measures what was asked for."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps-per-call", type=int, default=1, help="steps in one graph")
    args = arguments.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    rows, pace = read(args.data / "adult.data.csv"), Pace(args.warmup)
    together = args.steps_per_call
    # Lets autograd.grad be part of the graph.
    torch._dynamo.config.trace_autograd_ops = True
    train = Training(rows, batch=args.batch, steps_per_call=together)
    orders = map(torch.from_numpy, census_rows.orders(len(rows.labels), args.batch * together))
    for places in itertools.islice(orders, args.steps // together):
        train(places)
        pace.step(together)
        if pace.steps == 2 * together:
            torch.compiler.set_stance("default", skip_guard_eval_unsafe=True)
    pace.end()
    report = Report(peer="compiled loop", version=torch.__version__)
    report.take(pace, args.batch)
    if args.evaluate:
        test = read(args.data / "adult.test.csv")
        scores.enter(report, train.probabilities(test).numpy(), test.labels.numpy())
    report.print()


if __name__ == "__main__":
    main()
