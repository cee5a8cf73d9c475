"""The page of models: versions, defaults and changes, where each version comes from, and the requests it gets."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.console.conftest import Visit
from tests.console.corpus import Corpus
from tests.console.pages import Page
from tests.console.test_tuning_view import send, write_study
from tests.serving.echo_export import write_echo
from torch_estimator.cli.main import main
from torch_estimator.console import sources as sources_module
from torch_estimator.console import traffic as traffic_module
from torch_estimator.registry import Registry


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "_NAMES_SECS", -1.0)
    monkeypatch.setattr(traffic_module, "_FRESH_SECS", 0.0)


def export(run: Path, name: str = "1700000000") -> Path:
    """Write an export of a run, without the recorded predictions, which are made up."""
    written = write_echo(run / "export" / "best" / name)
    shutil.rmtree(written / "assets.extra")
    manifest = written / "signatures.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "global_step": 500}))
    return written


@pytest.fixture
def registry(corpus: Corpus) -> Registry:
    """Version 1 is of job ``census``, and version 2 of nobody who is here."""
    corpus.job("census", ago=10**9, arguments=["--train-batch-size", "40"], events=[{"kind": "ended", "time": 9.0, "state": "SUCCEEDED"}])  # fmt: skip # noqa: E501
    registry = Registry(corpus.base / "registry")
    registry.create_model("echo", description="Says <it> again")
    registry.create_version("echo", 1, export(corpus.output("census")), description="First")
    registry.create_version("echo", 2, export(corpus.base / "elsewhere"))
    registry.update("echo", 2, labels=["canary"])
    return registry


PAGE = "/page/models?model=echo"


def test_versions_labels_the_default_and_the_history_are_shown(
    corpus: Corpus, registry: Registry, visit: Visit
) -> None:
    page = Page(visit(corpus.jobs, registry=registry.url).get("/page/models"))
    assert "echo version 1 is the default Says <it> again" in page.text
    assert re.search(r"Versions .* 2 canary no job here 500 .* 1 default First census 500", page.text)
    changes = page.text.partition("History")[2]
    assert re.findall(r"(?:update labels|create version|create model) ?\d?", changes) == [
        "update labels 2",
        "create version 2",
        "create version 1",
        "create model ",
    ]


def test_a_version_leads_back_to_its_job_step_and_rows(corpus: Corpus, registry: Registry, visit: Visit) -> None:
    page = Page(visit(corpus.jobs, registry=registry.url).get(f"{PAGE}&version=1"))
    assert "Job census succeeded Step 500 20,000 rows, 40 a step Version 1" in page.text
    assert "/page/job?id=job%3Acensus" in page.links("job%3Acensus")
    assert str(corpus.output("census") / "export" / "best" / "1700000000") in page.text


def test_a_version_of_a_trial_leads_back_to_the_trial(tmp_path: Path, visit: Visit) -> None:
    directory = write_study(tmp_path, state="SUCCEEDED")
    registry = Registry(tmp_path / "registry")
    registry.create_model("echo")
    registry.create_version("echo", 1, export(Path(directory.trial(1).job_dir)))
    page = Page(visit(tmp_path / "jobs", registry=registry.url).get(PAGE))
    assert "Job study succeeded Trial 1 Step 500 Version 1" in page.text
    assert "/page/tuning?id=job%3Astudy&trial=1#trial" in page.links("trial=1")


def test_a_copy_of_another_version_and_a_linked_folder_lead_back_too(
    corpus: Corpus, registry: Registry, visit: Visit
) -> None:
    # A registry keeps the run of a version that is copied into it.
    run = corpus.output("census")
    (run / "checkpoint").write_text("{}")
    registry.create_version("echo", 3, run / "export" / "best" / "1700000000")
    other = Registry(corpus.base / "other")
    other.create_model("echo")
    other.create_version("echo", 1, registry.version_dir("echo", 3))
    (corpus.base / "link").symlink_to(corpus.base / "output")
    other.create_version("echo", 2, corpus.base / "link" / "census" / "export" / "best" / "1700000000")
    for number in (1, 2):
        page = Page(visit(corpus.jobs, registry=other.url).get(f"{PAGE}&version={number}"))
        assert "Job census succeeded Step 500" in page.text


def test_of_jobs_that_wrote_into_one_folder_the_last_before_the_export_is_named(
    corpus: Corpus, registry: Registry, visit: Visit
) -> None:
    for name, created in (("before", 1_600_000_000), ("after", 1_800_000_000)):
        corpus.job(name, ago=corpus.now - created, job_dir=str(corpus.output("census")))
    corpus.job("first", ago=corpus.now - 1000, job_dir=str(corpus.output("census")))
    page = Page(visit(corpus.jobs, registry=registry.url).get(f"{PAGE}&version=1"))
    assert "Job before" in page.text.partition("from rows to requests")[2]


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_model_whose_job_is_gone_says_so(corpus: Corpus, registry: Registry, visit: Visit, is_removed: bool) -> None:
    if is_removed:
        shutil.rmtree(corpus.base / "elsewhere")
    page = Page(visit(corpus.jobs, registry=registry.url).get(f"{PAGE}&version=2"))
    place = corpus.base / "elsewhere" / "export" / "best" / "1700000000"
    still = "no longer" if is_removed else "still"
    assert f"It was copied from {place}, which is {still} there. No job in {corpus.jobs} has written it." in page.text
    # The job is removed while the page is open.
    shutil.rmtree(corpus.jobs / "census")
    page = Page(visit(corpus.jobs, registry=registry.url).get(f"{PAGE}&version=1"))
    assert "Job gone, or not here Step 500" in page.text


def test_what_is_damaged_or_missing_is_said_and_the_rest_is_shown(
    corpus: Corpus, registry: Registry, visit: Visit
) -> None:
    console = visit(corpus.jobs, registry=registry.url)
    (Path(registry.url) / "echo" / "2" / "manifest.json").write_text("{")
    page = Page(console.get(PAGE))
    assert "echo/2/manifest.json is damaged" in page.text and "1 default First census" in page.text
    for address, said in (
        ("/page/models?model=nope", "there is no model 'nope'"),
        (f"{PAGE}&version=7", "The model echo has no version 7"),
        ("/page/models?model=..", "the name of a model must be"),
    ):
        page = Page(console.get(address))
        assert page.status in (400, 404) and said in page.text
    assert "No registry" in Page(visit(corpus.jobs).get("/page/models")).text
    assert "has no model" in Page(visit(corpus.jobs, registry=corpus.base / "none").get("/page/models")).text


def test_the_default_is_set_by_a_form(corpus: Corpus, registry: Registry, visit: Visit) -> None:
    console = visit(corpus.jobs, registry=registry.url)
    answer = send(console, "/page/models/default", PAGE, model="echo", version="2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/models?model=echo&to=2")
    assert registry.read_model("echo").default == 2
    assert "Version 2 is the default now." in Page(console.get("/page/models?model=echo&to=2")).text
    # Another one deletes it while the page is open.
    registry.delete_version("echo", 1)
    fields = {"form_key": console.cookies["estimator_form"], "model": "echo", "version": "1"}
    refused = Page(console.post("/page/models/default", data=fields))
    assert refused.status == 409 and "has no version 1" in refused.text


@contextmanager
def metrics(answers: list[tuple[int, str]]) -> Iterator[str]:
    """A server that gives these answers to ``/metrics``, and then the last one; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_requests_of_each_version_are_shown_where_a_server_says_them(
    corpus: Corpus, registry: Registry, visit: Visit
) -> None:
    line = 'te_requests_total{{code="200",method="predict",model="echo",version="{}"}} {}\n'
    texts = [line.format(1, 7.0) + line.format(2, 1.0), line.format(1, 1e6) + line.format(2, 1.0)]
    with metrics([(200, text) for text in texts]) as server:
        console = visit(corpus.jobs, registry=registry.url, server=server)
        page = Page(console.get(f"{PAGE}&version=1"))
        assert f"Requests {server.partition('://')[2]} 7 in all" in page.text
        assert f"{server}/?model=echo" in page.links(server)
        assert re.search(
            r"Requests \S+ (?!0/)[\d.e+]+/s , 1,000,000 in all", Page(console.get(f"{PAGE}&version=1")).text
        )
        assert re.search(r"Requests \S+ 0/s , 1 in all", Page(console.get(f"{PAGE}&version=2")).text)
        assert server in Page(console.get("/")).links(server)


def test_what_is_no_address_of_a_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--jobs", str(tmp_path), "--server", "localhost:8501"]) == 2
    assert (
        "--server must be an address such as http://127.0.0.1:8501, but got 'localhost:8501'."
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("status", "said"), [(401, "it wants a token"), (500, "it answered with status 500")])
def test_a_server_that_does_not_say_them_is_no_reason_to_show_nothing(
    corpus: Corpus, registry: Registry, visit: Visit, status: int, said: str
) -> None:
    with metrics([(status, "")]) as server:
        page = Page(visit(corpus.jobs, registry=registry.url, server=server).get(PAGE))
        assert f"{server} does not say which requests it gets: {said}." in page.text
    # It has ended.
    page = Page(visit(corpus.jobs, registry=registry.url, server=server).get(PAGE))
    assert "does not say which requests it gets: Connection refused." in page.text
    assert "1 default First census" in page.text
