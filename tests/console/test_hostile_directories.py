"""The console over directories that somebody hostile, or a broken disk, has written."""

from __future__ import annotations

import html
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.console.console_server import console
from tests.console.hostile_directories import INVISIBLE, MARKS, spec, write_hostile, write_job
from torch_estimator.console.sources import MOST_LISTED

_LINK = re.compile(r"""(?:href|src|hx-get|data-[a-z-]+)\s*=\s*["']([^"']*)["']""")
_MOST_PAGES = 400
# More than any page of this corpus needs, and less than one line of its logs.
_MOST_BYTES = 2 * 2**20


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hostile directory of jobs, and one of runs."""
    return write_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def client(directories: tuple[Path, Path]) -> Iterator[httpx.Client]:
    """A visitor of a console over the hostile directories."""
    with console(*directories) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as visitor:
        yield visitor


@pytest.fixture(scope="module")
def answers(client: httpx.Client) -> dict[str, httpx.Response]:
    """What the console answers to all addresses that its pages have, by address."""
    found: dict[str, httpx.Response] = {}
    waiting = ["/"]
    while waiting and len(found) < _MOST_PAGES:
        address = waiting.pop(0)
        if address not in found:
            found[address] = client.get(address)
            waiting += links(found[address].text) if "html" in found[address].headers.get("content-type", "") else []
    return found


def links(text: str) -> list[str]:
    """Return the addresses of this site that a page has."""
    return [link for found in _LINK.findall(text) if (link := html.unescape(found)).startswith("/")]


def test_every_page_answers(answers: dict[str, httpx.Response]) -> None:
    assert {
        address: one.status_code for address, one in answers.items() if one.status_code not in (200, 303, 404)
    } == {}


def test_pages_of_all_jobs_are_reached(answers: dict[str, httpx.Response]) -> None:
    named = {one for address in answers for one in parse_qs(urlsplit(address).query).get("id", [])}

    assert {"job:healthy", "job:hostile", "job:torn", "job:no_kind", "job:no_logs", "run:damaged/torn"} <= named


def test_nothing_breaks_out(answers: dict[str, httpx.Response]) -> None:
    for address, answer in answers.items():
        if "/static/" in address:
            continue
        # What is not shown, and names a run, has its name as it is.
        shown = re.sub(r'(name="id" value|data-id)="[^"]*"', "", answer.text)
        is_page = "html" in answer.headers["content-type"]
        assert [text for text in (*(MARKS if is_page else ()), *INVISIBLE) if text in shown] == [], address
        assert "hunter2" not in answer.text, address


def test_a_long_line_does_not_make_a_long_page(answers: dict[str, httpx.Response]) -> None:
    assert {address: len(one.content) for address, one in answers.items() if len(one.content) > _MOST_BYTES} == {}


def test_a_healthy_job_is_shown_beside_damaged_ones(answers: dict[str, httpx.Response]) -> None:
    assert ">healthy</a>" in answers["/"].text
    assert "it had run out of luck" in answers["/page/job?id=job%3Ahealthy"].text


@pytest.mark.parametrize("name", ["torn", "empty", "a_list", "not_utf8", "other_types", "nested"])
def test_the_list_says_which_jobs_are_damaged(answers: dict[str, httpx.Response], name: str) -> None:
    row = next(one for one in answers["/"].text.split("<tr") if f">{name}</a>" in one)

    assert "damaged" in row


@pytest.mark.parametrize(
    "address",
    [
        "/page/job",
        "/page/job?id=",
        "/page/job?id=job:../jobs/healthy",
        "/page/job?id=job:healthy/../healthy",
        "/page/job?id=run:../../etc",
        "/page/job?id=trial:healthy/99999999999999999999",
        "/page/job?id=job:%00",
        "/page/job?id=" + "x" * 10_000,
    ],
)
def test_an_address_that_names_nothing_gets_a_sentence(client: httpx.Client, address: str) -> None:
    answer = client.get(address)

    assert answer.status_code == 404
    assert 'role="alert"' in answer.text or "<main" in answer.text
    assert "Traceback" not in answer.text


def test_two_jobs_of_one_name_are_both_shown(answers: dict[str, httpx.Response]) -> None:
    # The directory `twin_of_healthy` is a copy whose job.json has the name of the other.
    assert {">healthy</a>", ">twin_of_healthy</a>"} <= set(re.findall(r">\w+</a>", answers["/"].text))


def test_directories_that_are_not_there_are_named_and_the_page_works(tmp_path: Path) -> None:
    with console(tmp_path / "nowhere", tmp_path / "nothing") as url:
        text = httpx.get(url, trust_env=False).text

    assert f"{tmp_path}/nowhere" in text
    assert f"{tmp_path}/nothing" in text
    assert "--jobs names another directory" in text
    assert "--logdir names another directory" in text


def test_a_directory_that_may_not_be_read_is_named_and_the_rest_works(tmp_path: Path) -> None:
    jobs, runs = write_hostile(tmp_path)
    (jobs / "hostile").chmod(0)
    runs.chmod(0)
    try:
        if os.access(runs, os.R_OK):
            pytest.skip("root may read everything")
        with console(jobs, runs) as url:
            text = httpx.get(url, trust_env=False).text
    finally:
        (jobs / "hostile").chmod(0o700)
        runs.chmod(0o700)

    assert "Permission denied" in text
    assert ">healthy</a>" in text


def test_of_many_entries_the_newest_are_listed_and_the_rest_is_told(tmp_path: Path) -> None:
    for number in range(MOST_LISTED + 10):
        (tmp_path / f"job_{number}").mkdir()
    job = write_job(tmp_path, spec("newest", tmp_path / "runs"))
    os.utime(job.url, (2e9, 2e9))

    with console(tmp_path) as url:
        text = httpx.get(url, trust_env=False, timeout=60).text

    assert ">newest</a>" in text
    assert f"Only the newest {MOST_LISTED:,} are listed" in text


def test_a_job_that_is_removed_is_told_and_forgotten(tmp_path: Path) -> None:
    jobs, runs = tmp_path / "jobs", tmp_path / "runs"
    for name in ("stays", "goes"):
        write_job(jobs, spec(name, runs / name))
    with console(jobs, runs) as url, httpx.Client(base_url=url, trust_env=False) as visitor:
        assert visitor.get("/page/job?id=job:goes").status_code == 200
        shutil.rmtree(jobs / "goes")

        answer = visitor.get("/page/job?id=job:goes")

        assert answer.status_code == 404
        assert "it may have been removed" in answer.text
        assert visitor.get("/page/job?id=job:stays").status_code == 200
