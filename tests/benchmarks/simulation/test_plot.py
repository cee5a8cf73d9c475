"""Plots are SVG that a browser takes, with every line where it belongs."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.simulation.plot import Line, Panel, svg

SVG = "{http://www.w3.org/2000/svg}"


def test_powers_of_ten_are_equally_far_apart() -> None:
    lines = [Line(name="linear", points=[(1, 10), (10, 100), (100, 1000)]), Line(name="flat", points=[(1, 10)])]

    drawing = ElementTree.fromstring(svg([Panel(title="a & b", x="workers", y="steps/s", lines=lines)]))

    line, _ = drawing.iter(f"{SVG}polyline")
    (x1, y1), (x2, y2), (x3, y3) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert abs((x2 - x1) - (x3 - x2)) < 0.2 and abs((y1 - y2) - (y2 - y3)) < 0.2
    assert x1 < x2 and y1 > y2
    assert {"a & b", "workers", "steps/s", "linear", "flat", "1,000"} <= {
        text.text for text in drawing.iter(f"{SVG}text")
    }


def test_panels_lie_two_in_a_row() -> None:
    panel = Panel(title="a", x="x", y="y", lines=[Line(name="one", points=[(1, 1)])])

    one, two, three = (ElementTree.fromstring(svg([panel] * count)).attrib["viewBox"].split() for count in (1, 2, 3))

    assert (2 * int(one[2]), one[3]) == (int(two[2]), two[3])
    assert (two[2], 2 * int(two[3])) == (three[2], int(three[3]))
