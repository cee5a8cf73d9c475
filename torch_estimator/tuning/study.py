"""What is asked of a study. It is stored as JSON in the job's specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch_estimator.errors import InvalidValueError
from torch_estimator.tuning.space import Space

DEFAULT_METRIC = "training/hptuning/metric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is asked of a study. `dataclasses.asdict` makes it JSON, and `runs.state_file.from_json` reads that.

    Attributes:
        space: Parameters, and the values that trials may have.
        goal: Whether higher or lower values of the metric are better.
        metric: Name of the metric: that of an evaluation, or a tag in event files.
        max_trials: Number of trials.
        parallel: How many trials run at the same time, at most.
        max_failed: After how many failed trials the study fails; 0 leaves it to `has_failed`.
        early_stopping: Whether trials without prospects pause before they end.
        measurement: Which value of the metric counts for a trial with several evaluations.
        resume_previous: Name of an earlier job, whose trials are added first.
        algorithm: Who proposes values; None takes the best one that is installed.
        code: Digest of the function that trials run; empty if they run a program.
        target: Settings of the target on which each trial is a job of its own; None if trials are local processes.
        seed: With the same seed and one trial at a time, a study has the same trials.
    """

    space: Space
    goal: Literal["MAXIMIZE", "MINIMIZE"] = "MAXIMIZE"
    metric: str = DEFAULT_METRIC
    max_trials: int = 1
    parallel: int = 1
    max_failed: int = 0
    early_stopping: bool = False
    measurement: Literal["LAST", "BEST"] = "LAST"
    resume_previous: str | None = None
    algorithm: Literal["GRID", "RANDOM"] | None = None
    seed: int = 0
    code: str = ""
    target: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("trials", self.max_trials, 1),
            ("parallel trials", self.parallel, 1),
            ("failed trials", self.max_failed, 0),
        ):
            if value < least:
                raise InvalidValueError(f"the number of {name} must be at least {least}, but got {value}.")
        if self.algorithm == "GRID":
            size = self.space.size
            if self.resume_previous is None:
                self.check_grid(size)

    def check_grid(self, size: int) -> None:
        """Raise an InvalidValueError if there are not enough trials for a grid with so many points to try."""
        if size > self.max_trials:
            raise InvalidValueError(
                f"the grid has {size} points, but the study has {self.max_trials} trials; allow as many trials, or "
                "take fewer values."
            )

    def has_failed(self, failed: int, *, has_value: bool) -> bool:
        """Return whether so many failed trials are too many.

        Unless `max_failed` says how many are, these are 3 while no trial has a value, because then the program may be
        wrong. Later, some values of the parameters may be, and too many are half of all trials, at least 3.

        >>> from torch_estimator.tuning.space import Integer
        >>> study = Study(space=Space((Integer("x", 1, 9),)), max_trials=10)
        >>> study.has_failed(3, has_value=False)
        True
        >>> [study.has_failed(failed, has_value=True) for failed in (3, 4, 5)]
        [False, False, True]
        """
        if self.max_failed:
            return failed >= self.max_failed
        return failed >= (max(3, self.max_trials / 2) if has_value else 3)
