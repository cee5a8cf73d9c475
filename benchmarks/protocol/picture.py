"""The frame of a picture that a benchmark draws: an SVG file for pages and for places that show it as an image."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# On the site, docs/_static/pictures.css gives these classes the colours of the page's theme.
_STYLE = """
.picture text { fill: #1f2328; }
.picture .title { font-weight: 600; }
.picture .quiet { fill: #59636e; }
.picture .grid { stroke: #d1d9e0; }
.picture .bar { fill: #a3adb8; }
.picture .bar.ours { fill: #2962b9; }
@media (prefers-color-scheme: dark) {
.picture text { fill: #e6edf3; }
.picture .quiet { fill: #9198a1; }
.picture .grid { stroke: #3d444d; }
.picture .bar { fill: #656c76; }
.picture .bar.ours { fill: #5b9bf8; }
}
"""


def picture(parts: Iterable[str], width: int, height: int, description: str, *, font_px: float) -> str:
    """Return an SVG file that holds the elements `parts`, readable in dark and light.

    Width and height are in units of the elements. `description` says what the picture shows, for those who cannot see
    it.

    >>> "a &lt; b" in picture(["<g/>"], 10, 10, "a < b", font_px=13)
    True
    """
    style = f"\n.picture {{ font: {font_px:g}px system-ui, sans-serif; }}{_STYLE}"
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(description)}">\n<style>{style}</style>\n{inner}\n</svg>\n'
    )
