"""Headless Chromium, driven over the WebDriver protocol by Debian's chromedriver."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

MANY_SECS = 60.0

# The key under which WebDriver sends the id of an element.
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def is_installed() -> bool:
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    """One window."""

    def __init__(self, session: httpx.Client) -> None:
        self._session = session

    def _ask(self, verb: str, path: str, **content: Any) -> Any:
        answer = self._session.request(verb, path, json=content if verb == "POST" else None).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url: str) -> None:
        self._ask("POST", "url", url=url)

    @property
    def url(self) -> str:
        return str(self._ask("GET", "url"))

    def find(self, css: str) -> list[str]:
        """The ids of the elements that a selector names."""
        return [one[_ELEMENT] for one in self._ask("POST", "elements", using="css selector", value=css)]

    def click(self, css: str) -> None:
        self._ask("POST", f"element/{self.find(css)[0]}/click")

    def write(self, css: str, text: str) -> None:
        """Replace the text of a field."""
        element = self.find(css)[0]
        self._ask("POST", f"element/{element}/clear")
        self._ask("POST", f"element/{element}/value", text=text)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page and return its value."""
        return self._ask("POST", "execute/sync", script=script, args=list(arguments))

    def text(self, css: str) -> str:
        """The visible text of the first element; empty if there is none."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def wait_for(self, css: str, pattern: str) -> str:
        """Wait until the text of an element matches, and return it."""
        self.wait_until(lambda: re.search(pattern, self.text(css)) is not None)
        return self.text(css)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + MANY_SECS
        while not is_so():
            assert time.monotonic() < deadline, f"{self.text('body')}\n{self.log()}"
            time.sleep(0.02)

    def emulate(self, command: str, **settings: Any) -> Any:
        """Send a command of the DevTools protocol; return what it answers."""
        return self._ask("POST", "goog/cdp/execute", cmd=command, params=settings)

    def new_window(self) -> None:
        """Open another window beside those that there are, and go on in it."""
        self.switch(self._ask("POST", "window/new", type="window")["handle"])

    def windows(self) -> list[str]:
        """The ids of all windows, the oldest first."""
        return list(self._ask("GET", "window/handles"))

    def switch(self, window: str) -> None:
        """Go on in another window."""
        self._ask("POST", "window", handle=window)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page in CSS pixels; a window cannot be narrower than 500."""
        self.emulate(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Prefer ``dark`` or ``light``."""
        self.emulate("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def without_javascript(self) -> None:
        """Run no scripts of pages from now on."""
        self.emulate("Emulation.setScriptExecutionDisabled", value=True)

    def log(self) -> list[str]:
        """What the console has said since the last call: errors, and violations of the content security policy."""
        return [one["message"] for one in self._ask("POST", "se/log", type="browser")]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "screenshot")))


@contextmanager
def browser() -> Iterator[Browser]:
    """A new window with no cookies."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile, _driver() as url:
        options = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
            "--disable-breakpad",
            *("--force-color-profile=srgb", "--window-size=1280,1000", f"--user-data-dir={profile}"),
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": options},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        with httpx.Client(base_url=url, timeout=MANY_SECS, trust_env=False) as client:
            made = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in made, made
            session = f"{url}/session/{made['sessionId']}"
            client.base_url = f"{session}/"
            try:
                yield Browser(client)
            finally:
                # This ends Chromium, which ending chromedriver alone does not.
                client.delete(session).raise_for_status()


@contextmanager
def _driver() -> Iterator[str]:
    """The address of a chromedriver of our own."""
    with subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            ports = (match[1] for line in lines if (match := re.search(r"successfully on port (\d+)", line)))
            yield f"http://127.0.0.1:{next(ports)}"
        finally:
            process.terminate()
