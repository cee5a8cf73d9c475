"""Forms that cancel a job and start it again. A page includes them as ``job_forms.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from torch_estimator.console import texts
from torch_estimator.console.tuning_view import refused_as_conflict
from torch_estimator.jobs.kinds import KINDS
from torch_estimator.jobs.submission import cancel, resubmit
from torch_estimator.web.errors import RequestError
from torch_estimator.web.site import link

if TYPE_CHECKING:
    from torch_estimator.console.app import Context


def routes(context: Context) -> list[Route]:
    """Return the routes of the forms."""

    async def answer(request: Request) -> Response:
        form = await context.site.rules.form(request)
        id, action = form.get("id", ""), form.get("action", "")
        found = await run_in_threadpool(context.sources.find, id)
        if found.job is None or found.spec is None or not id.startswith("job:"):
            raise RequestError(404, f"{texts.clean(found.name, 200)} is no job, so that it is not ended from here.")
        job, spec = found.job, found.spec

        def carry_out() -> None:
            with refused_as_conflict():
                if spec.settings.get("kind") not in KINDS:
                    raise RequestError(409, f"Job {job.name} ran on a target that this version does not know.")
                if action == "cancel":
                    cancel(job)
                elif action == "resume" and spec.study is not None and not spec.package:
                    raise RequestError(
                        409, f"The trials of {job.name} run a function; call tune again with the same directory."
                    )
                elif action == "resume":
                    resubmit(job, None)
                else:
                    raise RequestError(400, "A job can be cancelled or resumed; load the page again.")

        await run_in_threadpool(carry_out)
        context.index.forget(id)
        return RedirectResponse(link(request, "job", id=id), 303)

    return [Route("/page/job/change", context.site.answering(answer), methods=["POST"])]
