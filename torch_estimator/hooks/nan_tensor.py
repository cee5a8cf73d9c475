"""What happens when the training loss is NaN or infinite."""

from __future__ import annotations

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook, RunContext


class NanTensorHook(Hook):
    """Decides whether a training loss of NaN or infinity is an error or just the end.

    Training watches for it without any hook and raises `NanLossDuringTrainingError`. It does the same where a trained
    variable is NaN or infinite when it is to be saved. Either way the last checkpoint is the last good one.

    Args:
        fail_on_nan_loss: False ends training with a line in the log instead; ``train_and_evaluate`` then evaluates
            and exports the last checkpoint.
    """

    every_n_steps = None

    def __init__(self, fail_on_nan_loss: bool = True) -> None:
        if not isinstance(fail_on_nan_loss, bool):
            raise InvalidTypeError(
                f"NanTensorHook watches the training loss and takes only fail_on_nan_loss, True or False, but got "
                f"{fail_on_nan_loss!r}."
            )
        self._fail = fail_on_nan_loss

    def begin(self, context: RunContext) -> None:
        context.fail_on_nan_loss = self._fail
