"""What a page says: its text, and the elements and attributes in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx


class Page(HTMLParser):
    """A parsed page.

    Attributes:
        text: The text outside of scripts, with single spaces.
        elements: Name and attributes of each element.
    """

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        assert answer.headers["content-type"].startswith("text/html"), answer.text
        self.status = answer.status_code
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._texts: list[str] = []
        self.feed(answer.text)
        self.text = re.sub(r"\s+", " ", " ".join(self._texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """Return the attributes of the elements with a name, and with attributes that contain these texts."""
        wanted = {name.rstrip("_").replace("_", "-"): text for name, text in attributes.items()}
        return [
            found
            for name, found in self.elements
            if name == tag and all(text in found.get(key, "") for key, text in wanted.items())
        ]

    def links(self, text: str) -> list[str]:
        """Return the addresses of links that contain a text."""
        return [found["href"] for found in self.all("a", href=text)]
