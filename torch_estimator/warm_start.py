"""Settings for a warm start: which variables of a model begin with the weights of another job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True, slots=True)
class VocabInfo:
    """Mapping from old to new rows of a variable, such as an embedding, whose vocabulary has changed.

    The row of a word that is in both vocabularies is copied to the word's new position. The row of a new word keeps its
    initial value. A vocabulary is a text file with one word per line (a path or URL), or a list of words.

    Args:
        new_vocab: Vocabulary of the model.
        new_vocab_size: Number of words to use from the start of ``new_vocab``; -1 or None for all.
        num_oov_buckets: Number of rows after the words for words that are not in the vocabulary, in the model and in
            the checkpoint; they are copied in order.
        old_vocab: Vocabulary that the checkpoint was trained with.
        old_vocab_size: Number of words to use from the start of ``old_vocab``; -1 for all.
        backup_initializer: Function that fills a tensor in place, such as those of `torch.nn.init`; new words start
            with its values instead of the model's initial ones.
        axis: Axis of the variable that the words lie along: 0 for embeddings and linear weights, 1 for the kernel of a
            last layer, which has one column per class.

    Raises:
        InvalidValueError: A number is out of range.
        InvalidTypeError: A vocabulary is neither a file nor a list.

    >>> def model(words, model_dir, **settings):
    ...     color = fc.categorical_column_with_vocabulary_list("color", words)
    ...     return te.LinearRegressor([color], model_dir, **settings)
    >>> old = model(["red", "blue"], "memory://VocabInfo/old")
    >>> old = old.train(lambda: ({"color": ["red", "blue"]}, [1.0, 2.0]), steps=5)
    >>> weights = "linear/linear_model/color/weights"
    >>> info = te.VocabInfo(["green", "blue"], None, 0, old_vocab=["red", "blue"])
    >>> settings = te.WarmStartSettings(old.model_dir, var_name_to_vocab_info={weights: info})
    >>> new = model(["green", "blue"], "memory://VocabInfo/new", warm_start_from=settings)
    >>> new = new.train(lambda: ({"color": [""]}, [0.0]), steps=1)
    >>> bool(new.get_variable_value(weights)[1] == old.get_variable_value(weights)[1])
    True
    """

    new_vocab: str | os.PathLike[str] | Sequence[str | int]
    new_vocab_size: int | None
    num_oov_buckets: int
    old_vocab: str | os.PathLike[str] | Sequence[str | int]
    old_vocab_size: int = -1
    backup_initializer: Callable[[torch.Tensor], object] | None = None
    axis: int = 0

    def __post_init__(self) -> None:
        for name in ("new_vocab", "old_vocab"):
            if not isinstance(getattr(self, name), str | os.PathLike | Sequence):
                raise InvalidTypeError(
                    f"{name} of a VocabInfo must be a file or a list of words, but got {getattr(self, name)!r}."
                )
        for name, size in (("new_vocab_size", self.new_vocab_size), ("old_vocab_size", self.old_vocab_size)):
            if size is not None and size != -1 and not size > 0:
                raise InvalidValueError(f"{name} of a VocabInfo must be positive, or -1 for all words, but got {size}.")
        if not self.num_oov_buckets >= 0:
            raise InvalidValueError(
                f"num_oov_buckets of a VocabInfo must not be negative, but got {self.num_oov_buckets}."
            )
        if self.axis not in (0, 1):
            raise InvalidValueError(f"axis of a VocabInfo must be 0 or 1, but got {self.axis!r}.")
        if self.backup_initializer is not None and not callable(self.backup_initializer):
            raise InvalidTypeError(
                f"backup_initializer of a VocabInfo must be a function, but got {self.backup_initializer!r}."
            )

    def new_words(self) -> list[str]:
        """Return the words of the model's vocabulary; raise InvalidValueError if they are too few, or unreadable."""
        return _words("new_vocab", self.new_vocab, self.new_vocab_size)

    def old_words(self) -> list[str]:
        """Return the words of the checkpoint's vocabulary; raises the same errors as `new_words`."""
        return _words("old_vocab", self.old_vocab, self.old_vocab_size)


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Settings that select the variables that start with another job's weights; see ``warm_start_from`` of `Estimator`.

    Variables have the names that `Estimator.get_variable_names` returns. Only weights are copied, neither the global
    step nor the state of optimizers.

    Args:
        ckpt_to_initialize_from: Path of a checkpoint, or of a directory, which stands for its newest checkpoint.
        vars_to_warm_start: Which variables to copy. A regular expression selects parameters by the start of their
            names; a list of expressions selects buffers as well; None selects nothing. The variables named in the two
            dicts below are always copied.
        var_name_to_vocab_info: Maps the name of a variable whose vocabulary changed to its `VocabInfo`.
        var_name_to_prev_var_name: Maps the name of a variable to its name in the checkpoint, if that differs.

    Raises:
        InvalidValueError: An expression is not a valid regular expression.
        InvalidTypeError: An argument is of the wrong type.

    >>> x = fc.numeric_column("x")
    >>> old = te.DNNRegressor([4], [x], "memory://WarmStartSettings/old")
    >>> old = old.train(lambda: ({"x": [1.0]}, [2.0]), steps=5)
    >>> hidden = te.WarmStartSettings(old.model_dir, vars_to_warm_start="dnn/hiddenlayer_0/")
    >>> new = te.DNNClassifier(
    ...     [4],
    ...     [x],
    ...     "memory://WarmStartSettings/new",
    ...     n_classes=3,
    ...     optimizer=te.optim.SGD(lr=0.0),
    ...     warm_start_from=hidden,
    ... )
    >>> new = new.train(lambda: ({"x": [1.0]}, [2]), steps=1)
    >>> kernel = "dnn/hiddenlayer_0/kernel"
    >>> np.array_equal(new.get_variable_value(kernel), old.get_variable_value(kernel))
    True
    """

    ckpt_to_initialize_from: str | os.PathLike[str]
    vars_to_warm_start: str | Sequence[str] | None = ".*"
    var_name_to_vocab_info: Mapping[str, VocabInfo] = field(default_factory=dict)
    var_name_to_prev_var_name: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.ckpt_to_initialize_from, str | os.PathLike):
            raise InvalidTypeError(
                "ckpt_to_initialize_from must be a checkpoint or a directory of checkpoints, but got "
                f"{self.ckpt_to_initialize_from!r}."
            )
        for name in ("var_name_to_vocab_info", "var_name_to_prev_var_name"):
            given = getattr(self, name)
            object.__setattr__(self, name, {} if given is None else given)
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidTypeError(f"{name} must be a dict by variable name, but got {given!r}.")
        for name, info in self.var_name_to_vocab_info.items():
            if not isinstance(info, VocabInfo):
                raise InvalidTypeError(f"var_name_to_vocab_info of {name!r} must be a VocabInfo, but got {info!r}.")
        self._check_expressions()

    @property
    def expressions(self) -> tuple[str, ...]:
        """The regular expressions of ``vars_to_warm_start`` as a tuple; empty if that argument is None."""
        if self.vars_to_warm_start is None:
            return ()
        one = isinstance(self.vars_to_warm_start, str)
        return (str(self.vars_to_warm_start),) if one else tuple(self.vars_to_warm_start)

    def _check_expressions(self) -> None:
        if not isinstance(self.vars_to_warm_start, str | Sequence | None):
            raise InvalidTypeError(
                "vars_to_warm_start must be a regular expression, a list of them, or None, but got "
                f"{self.vars_to_warm_start!r}."
            )
        for expression in self.expressions:
            if not isinstance(expression, str):
                raise InvalidTypeError(f"vars_to_warm_start must be regular expressions, but got {expression!r}.")
            try:
                re.compile(expression)
            except re.error as error:
                raise InvalidValueError(
                    f"vars_to_warm_start {expression!r} is not a regular expression: {error}."
                ) from error


WarmStart = str | os.PathLike[str] | WarmStartSettings
"""Type of ``warm_start_from``: a checkpoint, a directory of checkpoints, or settings."""


def as_settings(warm_start_from: object) -> WarmStartSettings | None:
    """Convert the argument ``warm_start_from`` to settings; return None if the argument is None."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if isinstance(warm_start_from, str | os.PathLike):
        return WarmStartSettings(warm_start_from)
    raise InvalidTypeError(
        "warm_start_from must be a checkpoint, a directory of checkpoints or WarmStartSettings, but got "
        f"{warm_start_from!r}."
    )


def _words(name: str, vocab: str | os.PathLike[str] | Sequence[str | int], size: int | None) -> list[str]:
    if isinstance(vocab, str | os.PathLike):
        words = _lines(name, vocab)
        where = f"the file {files.as_url(vocab)}"
    else:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in vocab]
        where = "the list"
    if size is None or size == -1:
        return words
    if size > len(words):
        raise InvalidValueError(f"{name}_size of a VocabInfo is {size}, but {where} has only {len(words)} words.")
    return words[:size]


def _lines(name: str, path: str | os.PathLike[str]) -> list[str]:
    try:
        text = files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(
            f"{name} of a VocabInfo cannot be read: {files.as_url(path)}: {files.reason(error)}."
        ) from error
    lines = text.split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
