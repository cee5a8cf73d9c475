"""What the protocols share: the models, the metrics, and the way from a request to its answer."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.export.feeds import WrongRowError, has_nan, problem_of_row
from torch_estimator.export.instances import first_wrong
from torch_estimator.export.nan_predictions import NanPredictionError
from torch_estimator.registry import Registry
from torch_estimator.serving.batcher import BatchLimits, Columns, Result
from torch_estimator.serving.catalog import Catalog, Version, checked_sources, source_of
from torch_estimator.serving.metrics import Metrics
from torch_estimator.serving.options import ServingOptions
from torch_estimator.web.errors import RequestError

logger = logging.getLogger("torch_estimator")


class PredictionService:
    """Answers predictions for all models of a server; the protocols translate from and to it.

    While `is_draining` is set, before the server shuts down, it reports that it is not ready.
    """

    def __init__(self, options: ServingOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        limits = BatchLimits(
            max_batch=options.max_batch,
            max_delay_secs=options.max_delay_ms / 1000,
            max_queue=options.max_queue,
            timeout_secs=options.timeout_secs,
        )
        self.catalog = Catalog(
            limits,
            threads=options.session_threads,
            poll_secs=options.poll_secs,
            observe=self.metrics.observe_batch,
            executed=self.metrics.executed,
            ignore_unknown=options.ignore_unknown,
            observe_unknown=self.metrics.count_unknown,
        )
        for model, source in checked_sources(options.models, options.registry):
            self.catalog.add(model.name, source, model.policy, model.labels)
        if options.registry is not None and options.serves_whole_registry:
            self.catalog.follow(Registry(options.registry), options.policy)
        self.is_draining = False

    def apply(self, options: ServingOptions) -> None:
        """Serve the models of these settings from now on; their other settings must be those of `options`."""
        self.options = options
        followed = Registry(options.registry) if options.registry and options.serves_whole_registry else None
        named = [(model, source_of(model, options.registry)) for model in options.models]
        self.catalog.replace(named, followed, options.policy)

    def start(self) -> None:
        """Load the models, then look for changes in the background."""
        self.catalog.start()

    def close(self) -> bool:
        """Stop looking for changes; return whether a load or a graph is still running."""
        return self.catalog.close()

    @property
    def is_ready(self) -> bool:
        """Whether every model has a version that answers."""
        return self.catalog.is_ready and not self.is_draining

    async def predict(self, version: Version, signature: str, columns: Columns, rows: int) -> Result:
        """Run a version on the instances of one request.

        `columns` are lists, or arrays as `ExportedModel.predict` takes them, each with `rows` entries. A wrong input or
        a full queue raises a RequestError.
        """
        try:
            result = await version.batcher.predict(columns, signature, rows)
        except RequestError as error:
            if isinstance(error.__cause__, NanPredictionError):
                self.metrics.count_nan(version.model, version.number, "refused")
            raise
        except UserError as error:
            # The input was checked before, so this is a fault of the model or of the server.
            logger.error("Version %d of model %s failed: %s", version.number, version.model, error)
            raise RequestError(500, str(error)) from error
        # A result that is not finite may be so because of another request, with which it was run.
        if not result.is_finite and any(has_nan(one) for one in result.outputs.values() if one.dtype.kind == "f"):
            self.metrics.count_nan(version.model, version.number, "answered")
        return result

    async def predict_instances(self, version: Version, signature: str, columns: Columns, rows: int) -> Result:
        """Run a version as `predict` does, for a client that has given several instances; errors name the instance."""
        try:
            return await self.predict(version, signature, columns, rows)
        except RequestError as error:
            raise await self._naming_instance(error, version, signature, columns, rows) from error

    async def _naming_instance(
        self, error: RequestError, version: Version, signature: str, columns: Columns, rows: int
    ) -> RequestError:
        """Return an error that names the first wrong instance; `error` itself if it is about something else."""
        if not isinstance(error.__cause__, InvalidValueError):
            return error
        if isinstance(error.__cause__, WrongRowError):
            return RequestError(error.status, f"Instance {error.__cause__.row}: {problem_of_row(error.__cause__)}")
        search = partial(first_wrong, partial(version.check, signature=signature), columns, rows)
        if rows <= self.options.max_batch:
            found = search()
        else:
            found = await asyncio.get_running_loop().run_in_executor(None, search)
        if found is None:
            return error
        index, problem = found
        return RequestError(error.status, f"Instance {index}: {problem_of_row(problem)}")

    def describe(self) -> dict[str, Any]:
        """Return the name and the version of this server."""
        from torch_estimator import __version__

        return {"name": "torch-estimator", "version": __version__}
