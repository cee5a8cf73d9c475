"""Studies and models in headless Chromium: what the pointer marks, and forms without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, browser, is_installed
from tests.console.console_server import console
from tests.console.test_models_view import export
from tests.console.test_tuning_view import write_study
from torch_estimator.registry import Registry
from torch_estimator.tuning.requests import Requests

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs Chromium: apt-get install chromium chromium-driver (half a minute)"
)


@pytest.fixture
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def test_all_that_belongs_to_a_trial_is_marked_under_the_pointer(tmp_path: Path, window: Browser) -> None:
    directory = write_study(tmp_path)
    with console(tmp_path / "jobs") as url:
        window.open(f"{url}/page/tuning?id=job:study")
        over = "arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))"
        lit = "return [...document.querySelectorAll('.lit')].map((one) => one.tagName + one.dataset.trial)"

        def is_marked() -> bool:
            # The page's script may not run yet.
            window.run(f"(function() {{ {over} }})(document.querySelector('tr[data-trial=\"2\"] td'))")
            return bool(window.run(lit) == ["A2", "a2", "TR2"])

        window.wait_until(is_marked)
        # A part that is loaded anew replaces the old one, and leaves the page.
        window.run("window.isSamePage = true")
        trial = directory.trial(2)
        trial.state = "STOPPED"
        directory.write(trial)
        window.wait_for("#table tr[data-trial='2']", "stopped")
        assert window.run("return window.isSamePage === true")
        assert window.log() == []


def test_a_trial_is_stopped_and_a_default_set_without_javascript(tmp_path: Path, window: Browser) -> None:
    directory = write_study(tmp_path)
    registry = Registry(tmp_path / "registry")
    registry.create_model("echo")
    written = export(Path(directory.trial(1).job_dir))
    for number in (1, 2):
        registry.create_version("echo", number, written)
    window.without_javascript()
    with console(tmp_path / "jobs", registry=registry.url) as url:
        window.open(f"{url}/page/tuning?id=job:study&trial=3")
        window.click("button[value=STOP]")
        window.wait_for(".asked", "stop trial 3: not answered yet")
        [(request, _)] = Requests(directory).all()
        assert (request.action, request.trial) == ("STOP", 3)
        window.open(f"{url}/page/models?model=echo")
        window.click("#versions button")
        window.wait_for("#versions", "Version 2 is the default now")
        assert registry.read_model("echo").default == 2
        window.click("#origin .chain li:nth-child(2) a")
        window.wait_for("#trial h2", "Trial 1")
        assert window.log() == []
