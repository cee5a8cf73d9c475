"""The page at ``/``: models, versions, load, and a form that predicts.

It is HTML that works without JavaScript, but for the plots. With JavaScript, htmx replaces the part of the page that
an answer changes, which it takes from the same whole page.

``web/access.py`` says who may see it and use its forms. A server without tokens that listens beyond loopback has no
form either, since the form holds a row of the data that the model was trained or evaluated with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from torch_estimator.errors import UserError
from torch_estimator.export.instances import to_columns
from torch_estimator.serving.load import LoadHistory
from torch_estimator.serving.page_forms import command_line, outcome_of, read_instance
from torch_estimator.serving.page_view import Chosen, Models, Tried, signature_of
from torch_estimator.serving.service import PredictionService
from torch_estimator.web.access import Access, AccessRules, CheckAuthorization
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import PREFIX, Site, link, mounted_at

_INPUT = "input."

# Time that a changed default may take until the page shows it; the answer does not wait longer.
_SWITCH_SECS = 3.0


def routes(service: PredictionService, check_authorization: CheckAuthorization) -> list[Route]:
    """Return the routes of the page."""
    page = _Page(service, check_authorization)
    answering = page.site.answering
    return [
        Route("/", answering(page.show)),
        Route(f"{PREFIX}default", answering(page.set_default), methods=["POST"]),
        Route(f"{PREFIX}predict", answering(page.predict), methods=["POST"]),
        Route(f"{PREFIX}load", answering(page.load)),
        *page.site.routes(),
    ]


class _Page:
    def __init__(self, service: PredictionService, check_authorization: CheckAuthorization) -> None:
        options = service.options
        self._service = service
        self._rules = AccessRules(
            has_tokens=options.token_file is not None, check_authorization=check_authorization, host=options.host
        )
        self.site = Site(self._rules, Path(__file__).parent, home="the models")
        if options.console is not None:
            self.site.elsewhere["Console"] = options.console
        self._models = Models(service)
        self._history = LoadHistory(service.metrics)

    # What is shown.

    async def show(self, request: Request) -> Response:
        """Answer ``GET /``."""
        access = self._rules.access(request)
        if not access.may_see:
            return self.site.ask_for_token(request)
        return await self._page(request, access, _chosen(request.query_params))

    async def load(self, request: Request) -> Response:
        """Answer ``GET /page/load?since=SECOND``: the load since then, as JSON."""
        if not self._rules.access(request).may_see:
            return JSONResponse({"error": "Sign in first."}, 401)
        self._history.watch()
        since = _integer(request.query_params.get("since")) or 0
        return JSONResponse({**self._history.since(since), "models_are": self._models.fingerprint()})

    async def _page(self, request: Request, access: Access, chosen: Chosen, tried: Tried | None = None) -> Response:
        self._history.watch()

        def render() -> Response:
            return self.site.page(
                request,
                access,
                "page.html",
                400 if tried is not None and tried.problem else 200,
                model=self._models.view(chosen, with_form=access.may_use, tried=tried),
                models=self._models.names(),
                chosen=chosen,
                tried=tried,
                switched=_integer(request.query_params.get("to")),
                load=self._history.latest(),
                input_prefix=_INPUT,
            )

        # In a thread, because this reads the registry, which may be far away.
        return await run_in_threadpool(render)

    # What a person does.

    async def predict(self, request: Request) -> Response:
        """Answer the form of a prediction."""
        form, access = await self._rules.form(request), self._rules.access(request)
        chosen = _chosen(form)
        version = self._models.version_of(chosen.model, chosen.version)
        signature = signature_of(version, chosen.signature)
        if "answered" in request.scope:
            answered = request.scope["answered"]
            answered.model, answered.version, answered.method = version.model, version.number, "predict"
            answered.instances = 1
        texts = {name.removeprefix(_INPUT): text for name, text in form.items() if name.startswith(_INPUT)}
        began = time.perf_counter()
        try:
            instance = read_instance(signature, texts)
            columns = to_columns([instance], signature)
            result = await self._service.predict(version, chosen.signature, columns, 1)
        except UserError as error:
            tried = Tried(texts=texts, problem=str(error))
        except RequestError as error:
            if error.status != 400:
                raise
            tried = Tried(texts=texts, problem=error.message)
        else:
            host = f"{request.headers.get('host', '')}{mounted_at(request)}"
            url = f"{request.url.scheme}://{host}/v1/models/{quote(version.model)}/versions/{version.number}"
            tried = Tried(
                texts=texts,
                outcome=outcome_of(
                    result.outputs,
                    milliseconds=(time.perf_counter() - began) * 1000,
                    request=command_line(url, chosen.signature, instance, with_token=self._rules.has_tokens),
                ),
            )
        return await self._page(request, access, chosen, tried)

    async def set_default(self, request: Request) -> Response:
        """Answer the form that makes a version the default."""
        form = await self._rules.form(request)
        chosen = _chosen(form)
        if chosen.version is None:
            raise RequestError(400, "The form names no version; load the page again.")
        # Refuse a model that is not served here, although the registry may have it.
        model = self._models.name_of(chosen.model)
        await run_in_threadpool(self._models.registry_of(model).set_default, model, chosen.version)
        # The catalog finds the change by itself, soon. Wait for it, so that the page shows the new default.
        catalog, deadline = self._service.catalog, time.monotonic() + _SWITCH_SECS
        while catalog.state(model).default != chosen.version and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return RedirectResponse(link(request, model=model, to=chosen.version), 303)


def _chosen(fields: Mapping[str, str]) -> Chosen:
    """Return what the fields of an address or a form choose; raise a RequestError if a number is not one."""
    version = fields.get("version", "")
    number = _integer(version.removeprefix("v"))
    if version and number is None:
        raise RequestError(404, "A version is a whole number.")
    return Chosen(
        model=fields.get("model", ""),
        version=number,
        signature=fields.get("signature", ""),
        example=_integer(fields.get("example")) or 0,
        all=fields.get("all") == "1",
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= 18 else None
