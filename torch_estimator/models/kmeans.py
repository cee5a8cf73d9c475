"""K-means clustering: the Estimator, its module, and the update of the centers.

The update needs two sums over the rows of a step: the points and their number, per cluster. They are passed as the
negative gradients of two parameters, because every strategy adds up gradients over its processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.export.export_outputs import PredictOutput
from torch_estimator.feature_column.dense_features import InputLayer
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.metrics import streaming
from torch_estimator.models.canned_model_fn import as_columns
from torch_estimator.optim.factories import NamedParameters
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec, InputFn, check_positive

ChooseCenters = Callable[[Tensor, int], Any]
"""Function ``f(points, k)`` that returns 0 to `k` centers ``[n, width]`` for a batch of points ``[N, width]``."""


class KMeans(Estimator):
    """K-means clustering in full or mini-batches (`tf.compat.v1.estimator.experimental.KMeans`).

    Points are the features of a row: numbers ``[N]`` or ``[N, ...]``; of several features by name all numbers, in the
    order of the names; with ``feature_columns`` the output of an input layer. Labels are ignored.

    With ``use_mini_batch=False``, every step is one iteration of Lloyd's algorithm, so a batch must be the whole input.
    Otherwise each center is the mean of all points that the steps so far have assigned to it, and of its initial value.
    With ``mini_batch_steps_per_iteration`` above 1, the centers move only every so many steps, to the mean of the
    points of these steps. A center without points stays where it is.

    Its predictions are ``cluster_index`` (int64 ``[N]``) and ``all_distances`` (float32 ``[N, num_clusters]``), which
    are squared for Euclidean distances. An export has both, each also as a signature of its name, and
    ``cluster_index`` by default. The loss, and the metric ``score``, is the sum over a batch of the distances to the
    nearest center; an evaluation averages it over batches.

    Args:
        num_clusters: Number of clusters; ignored if ``initial_clusters`` is an array.
        model_dir: Directory for checkpoints, summaries and exports; see `RunConfig`.
        initial_clusters: The first centers, or how the first batches of the input give them: ``RANDOM_INIT`` (random
            points, from several batches if need be), ``KMEANS_PLUS_PLUS_INIT`` (k-means++ on the first batch), an array
            ``[num_clusters, width]``, or a function ``f(points, k)`` that returns up to ``k`` centers for a batch of
            points, float32 ``[N, width]``. It is called with batch after batch until there are enough.
        distance_metric: ``SQUARED_EUCLIDEAN_DISTANCE`` or ``COSINE_DISTANCE``.
        seed: Seed of the random choice of centers; None takes that of ``config``.
        use_mini_batch: Whether a batch is only a part of the input.
        mini_batch_steps_per_iteration: Number of steps after which the centers move, with ``use_mini_batch``.
        kmeans_plus_plus_num_retries: For each center of k-means++, how many further points are drawn, of which the best
            is taken; a negative number draws ``2 + log(num_clusters)``.
        relative_tolerance: Training ends when ``|loss - last loss| / (1 + |last loss|)`` is below it; None for never.
        config: Settings of the job; None for the defaults of `RunConfig`.
        feature_columns: Columns that make the points, as for a deep model; None takes all features.

    Raises:
        InvalidValueError: An argument is out of range, or unknown.
        InvalidTypeError: An argument is of the wrong type.

    >>> points = np.array([[0.0, 0.0], [0.0, 1.0], [8.0, 8.0], [8.0, 9.0]], np.float32)
    >>> kmeans = te.experimental.KMeans(2, "memory://KMeans", points[1:3], use_mini_batch=False)
    >>> _ = kmeans.train(lambda: points, steps=2)
    >>> kmeans.cluster_centers()
    array([[0. , 0.5],
           [8. , 8.5]], dtype=float32)
    >>> [int(index) for index in kmeans.predict_cluster_index(lambda: points)]
    [0, 0, 1, 1]
    >>> kmeans.score(lambda: points)
    1.0
    """

    SQUARED_EUCLIDEAN_DISTANCE = "squared_euclidean"
    COSINE_DISTANCE = "cosine"
    RANDOM_INIT = "random"
    KMEANS_PLUS_PLUS_INIT = "kmeans_plus_plus"
    SCORE = "score"
    CLUSTER_INDEX = "cluster_index"
    ALL_DISTANCES = "all_distances"
    CLUSTER_CENTERS_VAR_NAME = "clusters"

    def __init__(
        self,
        num_clusters: int,
        model_dir: str | None = None,
        initial_clusters: str | Tensor | np.ndarray | Sequence[Sequence[float]] | ChooseCenters = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        seed: int | None = None,
        use_mini_batch: bool = True,
        mini_batch_steps_per_iteration: int = 1,
        kmeans_plus_plus_num_retries: int = 2,
        relative_tolerance: float | None = None,
        config: RunConfig | None = None,
        feature_columns: Iterable[Any] | None = None,
    ) -> None:
        metrics = (self.SQUARED_EUCLIDEAN_DISTANCE, self.COSINE_DISTANCE)
        if distance_metric not in metrics:
            raise InvalidValueError(f"distance_metric must be {' or '.join(metrics)}, but got {distance_metric!r}.")
        check_positive("mini_batch_steps_per_iteration", mini_batch_steps_per_iteration)
        self._is_cosine = is_cosine = distance_metric == self.COSINE_DISTANCE
        choose: ChooseCenters | None = None
        given = None
        if callable(initial_clusters):
            choose = initial_clusters
        elif not isinstance(initial_clusters, str):
            given = _as_centers(initial_clusters, "initial_clusters")
            num_clusters = len(given)
        elif initial_clusters == self.RANDOM_INIT:
            choose = _Random(seed)
        elif initial_clusters == self.KMEANS_PLUS_PLUS_INIT:
            choose = _KMeansPlusPlus(seed, kmeans_plus_plus_num_retries, is_cosine=is_cosine)
        else:
            raise InvalidValueError(
                f"initial_clusters must be {self.RANDOM_INIT!r}, {self.KMEANS_PLUS_PLUS_INIT!r}, an array or a "
                f"function, but got {initial_clusters!r}."
            )
        check_positive("num_clusters", num_clusters)
        columns = as_columns(feature_columns)
        if columns:
            FeatureTransform(dnn_columns=columns)

        steps = int(mini_batch_steps_per_iteration) if use_mini_batch else 1

        def optimizer(named: NamedParameters) -> MoveCenters:
            parameters = dict(named)
            return MoveCenters(
                [parameters["clusters"], parameters["counts"]],
                is_running=use_mini_batch and steps == 1,
                steps=steps,
                is_cosine=is_cosine,
            )

        def model_fn(mode: str) -> EstimatorSpec:
            transform = FeatureTransform(dnn_columns=columns) if columns else None
            layer = None if transform is None or transform.dnn is None else InputLayer(transform.dnn)
            module = Clusters(int(num_clusters), layer, choose, is_cosine=is_cosine)
            if given is not None:
                module.set_centers(given)
            return EstimatorSpec(
                mode=mode,
                module=module,
                loss=_SumOfDistances(),
                predictions=_predictions,
                metrics={self.SCORE: _score},
                optimizer=optimizer,
                transform=transform,
                training_hooks=[] if relative_tolerance is None else [_StopAtSmallChange(relative_tolerance)],
                export_outputs={
                    self.ALL_DISTANCES: PredictOutput(self.ALL_DISTANCES),
                    self.CLUSTER_INDEX: PredictOutput(self.CLUSTER_INDEX),
                    "serving_default": PredictOutput(self.CLUSTER_INDEX),
                },
            )

        super().__init__(model_fn, model_dir, config)
        if self.config.task.num_ps:
            raise InvalidValueError(
                f"KMeans cannot train with parameter servers, but {self.config.task.source} names some; leave 'ps' out "
                "of the cluster, so that its workers train in step."
            )

    def cluster_centers(self) -> np.ndarray:
        """Return the centers in the newest checkpoint, float32 ``[num_clusters, width]``.

        Raises:
            CheckpointError: The model is not trained yet.
        """
        return self.get_variable_value(self.CLUSTER_CENTERS_VAR_NAME)

    def score(self, input_fn: InputFn) -> float:
        """Return the sum of the distances of the points of the first batch to their nearest centers.

        Args:
            input_fn: Function that returns the points; see `Estimator.evaluate`.
        """
        return self.evaluate(input_fn, steps=1)[self.SCORE]

    def predict_cluster_index(self, input_fn: InputFn) -> Iterator[np.ndarray]:
        """Yield the index of the nearest center for each point.

        Args:
            input_fn: Function that returns the points; see `Estimator.predict`.
        """
        for one in self.predict(input_fn, self.CLUSTER_INDEX):
            yield one[self.CLUSTER_INDEX]

    def transform(self, input_fn: InputFn) -> Iterator[np.ndarray]:
        """Yield the distances to all centers for each point, float32 ``[num_clusters]``; Euclidean ones not squared.

        Args:
            input_fn: Function that returns the points; see `Estimator.predict`.

        >>> points = np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)
        >>> kmeans = te.experimental.KMeans(1, "memory://KMeans.transform", points[:1])
        >>> [distances.tolist() for distances in kmeans.train(lambda: points[:1], steps=1).transform(lambda: points)]
        [[0.0], [5.0]]
        """
        for one in self.predict(input_fn, self.ALL_DISTANCES):
            yield one[self.ALL_DISTANCES] if self._is_cosine else np.sqrt(one[self.ALL_DISTANCES])


class Distances(NamedTuple):
    """Outputs of `Clusters`: the points, float32 ``[N, width]``, and their distances, float32 ``[N, num_clusters]``.

    For cosine distances the points have length 1.
    """

    points: Tensor
    to_centers: Tensor


class Clusters(nn.Module):
    """Module of `KMeans`: the distances of points to cluster centers, squared Euclidean or cosine.

    Without an input layer, the points are the features themselves. `choose` chooses the initial centers unless they are
    set. The width of the centers in `clusters`, ``[num_clusters, width]``, is 0 until it is known from the first batch,
    from a checkpoint, or from initial centers. `counts`, float32 ``[num_clusters]``, is the number of points of each
    center, and 1 for its initial value.
    """

    variable_separator = "/"

    def __init__(
        self, num_clusters: int, input_layer: InputLayer | None, choose: ChooseCenters | None, *, is_cosine: bool
    ) -> None:
        super().__init__()
        self.input_layer = input_layer
        self.choose = choose
        self.is_cosine = is_cosine
        self.clusters = nn.Parameter(torch.empty(num_clusters, 0))
        self.counts = nn.Parameter(torch.ones(num_clusters))

    def forward(self, features: Any) -> Distances:
        """Return the distances of `N` points to all centers."""
        points = self._points(features)
        width = self.clusters.shape[1]
        if not width:
            raise InvalidValueError("KMeans has no cluster centers yet; train first.")
        if points.shape[1] != width:
            raise InvalidValueError(
                f"The cluster centers have {width} numbers each, but the points of the input have {points.shape[1]}."
            )
        if self.is_cosine:
            points = _normalized(points)
            return Distances(points, 1 - points @ _normalized(self.clusters).T)
        squares = [one.square().sum(1) for one in (points, self.clusters)]
        squared = squares[0][:, None] - 2 * points @ self.clusters.T + squares[1]
        return Distances(points, squared.clamp(min=0))

    def initialize_from(self, batches: Iterable[Any]) -> None:
        """Choose the initial centers from the features of one or more batches, if they are not given."""
        if self.choose is None:
            return None
        chosen: list[Tensor] = []
        total = len(self.clusters)
        left = total
        for features in batches:
            points = self._points(features).detach()
            chosen.append(_as_centers(self.choose(points, left), "The centers of the function").to(points.device))
            left -= len(chosen[-1])
            if left < 0:
                raise InvalidValueError(f"initial_clusters chose more centers than the {total} that there are.")
            if not left:
                return self.set_centers(torch.cat([one for one in chosen if len(one)]))
        raise DataError(
            f"The input ended when {total - left} of {total} initial centers were chosen; give more points, or fewer "
            "clusters."
        )

    def set_centers(self, centers: Tensor) -> None:
        """Set the centers and their width."""
        self.size_like({"clusters": centers.shape})
        with torch.no_grad():
            self.clusters.copy_(_normalized(centers) if self.is_cosine else centers)

    def size_like(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Set the width of the centers, if it is not known, to that of centers with the given shape."""
        if not self.clusters.shape[1] and "clusters" in shapes:
            self.clusters.data = self.clusters.new_zeros(len(self.clusters), shapes["clusters"][1])

    def _points(self, features: Any) -> Tensor:
        if self.input_layer is not None:
            return self.input_layer(features)  # type: ignore[no-any-return]
        named = features if isinstance(features, Mapping) else {"features": features}
        for name, value in named.items():
            if not isinstance(value, Tensor):
                raise InvalidTypeError(
                    f"KMeans clusters numbers, but {name!r} has none; give feature_columns that make numbers of it."
                )
        columns = [named[name].to(self.clusters.dtype) for name in sorted(named)]
        return torch.cat([one.flatten(1) if one.dim() > 1 else one[:, None] for one in columns], dim=1)


class _SumOfDistances:
    """Loss of `KMeans`. In training, its gradients are the sums that `MoveCenters` needs, with a minus sign."""

    reduction = "sum"

    def __call__(self, outputs: Distances, labels: Any, module: Clusters) -> Tensor:
        nearest = outputs.to_centers.detach().min(dim=1)
        loss = nearest.values.sum()
        if not module.training:
            return loss
        points = outputs.points.detach()
        sums = torch.zeros_like(module.clusters).index_add(0, nearest.indices, points)
        counts = torch.zeros_like(module.counts).index_add(0, nearest.indices, torch.ones_like(points[:, 0]))
        for parameter, total in ((module.clusters, sums), (module.counts, counts)):
            # Add terms whose value is 0 and whose gradient is the total.
            loss = loss - ((parameter - parameter.detach()) * total).sum()
        return loss


class MoveCenters(torch.optim.Optimizer):
    """Update of cluster centers from the points that are assigned to them.

    The parameters are `Clusters.clusters` and `Clusters.counts`. Their gradients are the sum of the points of each
    cluster and the number of these points, with a minus sign. If `is_running`, a center is the mean of the points of
    all steps, instead of those of one iteration of `steps` steps, whose means get length 1 if `is_cosine`.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, is_running: bool, steps: int = 1, is_cosine: bool = False
    ) -> None:
        super().__init__(parameters, {"is_running": is_running, "steps": steps, "taken": 0, "is_cosine": is_cosine})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Count the points of a step, and move the centers if it is the last one of its iteration."""
        (group,) = self.param_groups
        clusters, counts = group["params"]
        assert clusters.grad is not None and counts.grad is not None
        if group["is_running"]:
            counts.sub_(counts.grad)
            clusters.sub_((clusters.grad - counts.grad[:, None] * clusters) / counts[:, None])
            return
        state = self.state[clusters]
        if not group["taken"]:
            counts.zero_()
            state["sums"] = torch.zeros_like(clusters)
        counts.sub_(counts.grad)
        state["sums"].sub_(clusters.grad)
        group["taken"] += 1
        if group["taken"] >= group["steps"]:
            group["taken"] = 0
            means = state["sums"] / counts.clamp(min=1)[:, None]
            moved = _normalized(means) if group["is_cosine"] else means
            clusters.copy_(torch.where(counts[:, None] > 0, moved, clusters))


class _StopAtSmallChange(Hook):
    """Hook that ends training when the loss changes by less than a relative tolerance from step to step."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._last: float | None = None

    def after_step(self, context: RunContext) -> None:
        last, self._last = self._last, context.loss
        if last is not None and abs(self._last - last) / (1 + abs(last)) < self._tolerance:
            context.request_stop()

    def state(self) -> dict[str, Any]:
        return {"last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._last = state["last"]


class _Random:
    """Choice of initial centers at random: different rows of a batch, or all of them if there are too few."""

    def __init__(self, seed: int | None) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __call__(self, points: Tensor, k: int) -> Tensor:
        return points[torch.randperm(len(points), generator=self._generator)[:k]]


class _KMeansPlusPlus:
    """Choice of initial centers by greedy k-means++ (Arthur and Vassilvitskii 2007), all from one batch."""

    def __init__(self, seed: int | None, retries: int, *, is_cosine: bool) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._retries = retries
        self._is_cosine = is_cosine

    def __call__(self, points: Tensor, k: int) -> Tensor:
        if len(points) < k:
            raise DataError(
                f"k-means++ chooses all {k} initial centers from the first batch, which has {len(points)} points; give "
                "larger batches, or initial_clusters='random'."
            )
        points = _normalized(points) if self._is_cosine else points
        draws = 1 + (self._retries if self._retries >= 0 else int(2 + np.log(k)))
        chosen = torch.randint(len(points), (1,), generator=self._generator)
        nearest = torch.cdist(points[chosen], points).square()[0]
        for _ in range(k - 1):
            # Draw points with probabilities in proportion to their distance from the nearest center, and take the one
            # that reduces the sum of all distances most.
            cumulated = nearest.cumsum(0, dtype=torch.float64).cpu()
            drawn = torch.rand(draws, generator=self._generator, dtype=torch.float64) * cumulated[-1]
            candidates = torch.searchsorted(cumulated, drawn, right=True).clamp(max=len(points) - 1)
            closer = torch.minimum(torch.cdist(points[candidates], points).square(), nearest)
            best = closer.sum(dim=1).argmin().cpu()
            nearest = closer[best]
            chosen = torch.cat([chosen, candidates[best][None]])
        return points[chosen]


def _normalized(points: Tensor) -> Tensor:
    return points * points.square().sum(dim=1, keepdim=True).clamp(min=1e-12).rsqrt()


def _as_centers(values: Any, what: str) -> Tensor:
    try:
        centers = torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{what} must be an array of numbers [num_clusters, width], but got {values!r}."
        ) from error
    if centers.dim() != 2:
        raise InvalidValueError(
            f"{what} must have the shape [num_clusters, width], but got the shape {list(centers.shape)}."
        )
    return centers


def _predictions(outputs: Distances) -> dict[str, Tensor]:
    return {
        KMeans.ALL_DISTANCES: outputs.to_centers,
        KMeans.CLUSTER_INDEX: outputs.to_centers.argmin(dim=1),
    }


def _score(labels: Any, predictions: Mapping[str, Tensor]) -> streaming.StreamingMetric:
    return streaming.mean(predictions[KMeans.ALL_DISTANCES].min(dim=1).values.sum()[None])
