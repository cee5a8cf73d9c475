"""How a model starts with another job's weights."""

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
    """Which rows of a variable belong to which words, now and in the checkpoint.

    Rows of words that both vocabularies have are taken over, wherever they stand; those of new words keep their
    initial values. A vocabulary is a file with a word a line (a path or URL), or a list of words.

    Args:
        new_vocab: The model's vocabulary.
        new_vocab_size: How many of its words to use, from the first; -1 or None for all.
        num_oov_buckets: Rows behind the words, for those that are not among them, in the model and in the checkpoint;
            they are taken over in their order.
        old_vocab: The vocabulary that the checkpoint was trained with.
        old_vocab_size: How many of its words to use, from the first; -1 for all.
        backup_initializer: Fills a tensor in place, as those of `torch.nn.init`: what new words start with instead.
        axis: The variable's axis that the words go along: 0 for embeddings and linear weights, 1 for a last layer's
            kernel with a column for each class.

    Raises:
        InvalidValueError: Where a number is out of range.
        InvalidTypeError: Where a vocabulary is neither a file nor a list.
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
        """The words of the model's vocabulary.

        Raises:
            InvalidValueError: Its file cannot be read, or has fewer words than wanted; so does `old_words`.
        """
        return _words("new_vocab", self.new_vocab, self.new_vocab_size)

    def old_words(self) -> list[str]:
        """The words of the checkpoint's vocabulary."""
        return _words("old_vocab", self.old_vocab, self.old_vocab_size)


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Which weights of another job a model starts with; see `Estimator`.

    Names are those of `Estimator.get_variable_names`. Weights are all that is taken over: neither the global step nor
    the state of optimizers.

    Args:
        ckpt_to_initialize_from: A checkpoint, or a directory whose newest one is meant.
        vars_to_warm_start: A regular expression that the names of the parameters to take over begin with; or a list
            of them, which are applied to buffers, too; or None for the variables in the two dicts only, which are
            taken over in any case.
        var_name_to_vocab_info: Name -> what its rows mean, for variables whose vocabulary changed.
        var_name_to_prev_var_name: Name -> what the variable is called in the checkpoint, where that differs.

    Raises:
        InvalidValueError: Where an expression cannot be parsed.
        InvalidTypeError: Where an argument is of the wrong type.
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
        """The regular expressions as a tuple."""
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
"""What ``warm_start_from`` takes: a checkpoint, a directory of checkpoints, or settings."""


def as_settings(warm_start_from: object) -> WarmStartSettings | None:
    """What ``warm_start_from`` means.

    Raises:
        InvalidTypeError: Where it means nothing.
    """
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
