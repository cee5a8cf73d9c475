"""Check that a loss depends on parameters of the trained module only."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError


def check_leaves(loss: Tensor, module: nn.Module) -> None:
    """Check that every parameter that a loss depends on belongs to the trained module or is frozen.

    Any other parameter would neither be updated nor saved in checkpoints. This happens easily with
    `Estimator.from_module`, which trains a copy of the module that it is given: a penalty in the loss that reads the
    weights of the original module would have no effect. The autograd graph of the loss must not have been freed yet.
    """
    known = set(module.parameters())
    for leaf in _leaves(loss):
        # Skip parameters without memory. With FullyShardedStrategy, the graph contains gathered copies of parameters
        # instead of the parameters in `known`. The memory of these copies is freed after the forward pass.
        if isinstance(leaf, nn.Parameter) and leaf not in known and leaf.untyped_storage().size():
            raise InvalidValueError(
                f"The loss depends on a parameter of shape {list(leaf.shape)} that is not one of the trained module's, "
                "so it would never be trained or saved (from_module trains a copy of its module); return what the loss "
                "needs from the module, or use a model_fn whose loss reads the module that it returns, or freeze the "
                "parameter with requires_grad_(False)."
            )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of a loss's autograd graph: the tensors that accumulate gradients."""
    if loss.grad_fn is None:
        yield loss
        return
    nodes, seen = [loss.grad_fn], {loss.grad_fn}
    while nodes:
        node = nodes.pop()
        # Only nodes of the type AccumulateGrad, which stand for leaves, have this attribute.
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        new = {following for following, _ in node.next_functions if following is not None} - seen
        nodes += new
        seen |= new
