"""Charts: well-formed, stable, readable without colour, and with words in place of the picture."""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from drawing import DASHES, MARKS, Drawing, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"
ALT = "Spending grows faster the longer a run is."
POINTS = [(turn, turn * turn * 0.0001) for turn in range(1, 101)]


def curve(**changes: object) -> Drawing:
    arguments: dict[str, object] = {
        "title": "Cost of a run",
        "series": {"the run": POINTS, "if each turn cost the same": [(0, 0), (100, 0.1)]},
        "x_label": "turns",
        "y_label": "US dollars",
        "alt": ALT,
        **changes,
    }
    return line_chart(**arguments)  # type: ignore[arg-type]


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.svg)


def texts(drawing: Drawing) -> list[str]:
    return [element.text or "" for element in parsed(drawing).iter(f"{SVG}text")]


def numbers_of(root: ElementTree.Element, tag: str, attribute: str) -> list[float]:
    return [float(element.attrib[attribute]) for element in root.iter(f"{SVG}{tag}")]


def marks_of(root: ElementTree.Element) -> list[str]:
    paths = root.iter(f"{SVG}path")
    return [path.attrib["transform"] for path in paths if "transform" in path.attrib]


def test_a_drawing_shows_itself_as_a_picture_and_as_a_sentence() -> None:
    drawing = curve()
    assert drawing._repr_mimebundle_() == {"image/svg+xml": drawing.svg, "text/plain": ALT}


def test_it_says_what_it_is_and_brings_its_own_background() -> None:
    root = parsed(curve())
    title, desc, background = list(root)[:3]
    assert root.attrib["role"] == "img"
    assert root.attrib["viewBox"] == "0 0 640 360"
    assert (title.tag, title.text) == (f"{SVG}title", "Cost of a run")
    assert (desc.tag, desc.text) == (f"{SVG}desc", ALT)
    assert (background.attrib["width"], background.attrib["fill"]) == ("640", "#ffffff")


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert curve().svg == curve().svg
    assert bar_chart("t", {"a": 1 / 3}, unit="ms", alt=ALT) == bar_chart(
        "t", {"a": 1 / 3 + 1e-12}, unit="ms", alt=ALT
    )


def test_lines_differ_without_colour_and_carry_their_names() -> None:
    drawing = curve()
    dashes = [line.attrib["stroke-dasharray"] for line in parsed(drawing).iter(f"{SVG}polyline")]
    assert len(set(dashes)) == 2
    assert len(set(DASHES)) == len(set(MARKS)) == 4
    assert {"the run", "if each turn cost the same"} <= set(texts(drawing))


def test_labels_of_lines_that_end_together_do_not_cover_each_other() -> None:
    drawing = curve(series={name: [(0, 0), (10, 10)] for name in ("a", "b", "c", "d")})
    heights = [
        float(e.attrib["y"]) for e in parsed(drawing).iter(f"{SVG}text") if (e.text or "") in "abcd"
    ]
    assert [b - a for a, b in pairwise(heights)] == [16.0, 16.0, 16.0]


def test_the_name_of_a_line_that_ends_early_stands_below_it_clear_of_the_others() -> None:
    drawing = curve(series={"long": [(0, 0), (10, 10)], "short": [(0, 0), (2, 2)], "low": [(2, 0)]})
    heights = {e.text: float(e.attrib["y"]) for e in parsed(drawing).iter(f"{SVG}text")}
    paths = {
        name: line.attrib["points"]
        for name, line in zip(
            ("long", "short", "low"), parsed(drawing).iter(f"{SVG}polyline"), strict=True
        )
    }
    ends = {name: float(points.split(",")[-1]) for name, points in paths.items()}
    assert heights["long"] == ends["long"] + 4
    assert heights["short"] == ends["short"] + 20
    assert heights["low"] < ends["low"]  # and not among the figures of the axis


def test_axes_begin_at_0_and_end_above_every_point() -> None:
    assert texts(curve())[1:7] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert {"0", "20", "100"} <= set(texts(curve()))
    thousands = curve(series={"tokens": [(1, 204), (100, 337_299)]})
    assert "400,000" in texts(thousands)
    assert "500,000" not in texts(thousands)


@pytest.mark.parametrize(
    "top", [1e-9, 0.000684, 0.3, 1, 3, 5, 7, 9.99, 10, 100, 123, 1e6, 337_299, 1e12]
)
def test_every_point_lies_within_the_plot(top: float) -> None:
    root = parsed(curve(series={"a": [(0, 0), (top, top / 2), (top / 3, top)]}))
    for pair in root.find(f"{SVG}polyline").attrib["points"].split():  # type: ignore[union-attr]
        x, y = map(float, pair.split(","))
        assert 80 <= x <= 440
        assert 48 <= y <= 300
    grid = [path for path in root.iter(f"{SVG}path") if "stroke" in path.attrib]
    assert 3 <= len(grid) <= 6


def test_what_a_caller_writes_is_text_and_never_markup() -> None:
    evil = "<b> & \"c\" ]]> 'd'"
    drawing = curve(title=evil, series={evil: POINTS}, x_label=evil, y_label=evil, alt=evil)
    assert texts(drawing).count(evil) == 4
    assert drawing.alt == evil
    bars = bar_chart(evil, {evil: 1.0}, unit=evil, alt=evil)
    assert texts(bars) == [evil, evil, f"1 {evil}"]


def test_bars_are_as_long_as_their_values_and_say_them() -> None:
    drawing = bar_chart("Cost", {"two": 2, "one": 1, "none": 0}, unit="$", alt=ALT, decimals=6)
    lengths = numbers_of(parsed(drawing), "rect", "width")[1:]
    assert lengths[0] == pytest.approx(2 * lengths[1])
    assert lengths[2] == 0
    assert {"$2.000000", "$1.000000", "$0.000000"} <= set(texts(drawing))
    assert "1,202 ms" in texts(bar_chart("t", {"stop": 1202}, unit="ms", alt=ALT))


def test_one_point_and_nothing_but_zeros_can_be_drawn() -> None:
    for points in ([(3, 4)], [(0, 0)], [(0, 0), (1, 0)]):
        root = parsed(curve(series={"a": points}))
        assert len(marks_of(root)) == len(points)
    assert numbers_of(parsed(bar_chart("t", {"a": 0}, unit="", alt=ALT)), "rect", "width")[1] == 0


def test_a_line_of_many_points_has_few_marks_and_one_at_its_end() -> None:
    root = parsed(curve(series={"a": POINTS}))
    marks = marks_of(root)
    assert len(marks) == 11
    assert marks[-1] == "translate(440.0 48.0)"


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ({}, "1 to 4 lines, not 0"),
        ({str(n): POINTS for n in range(5)}, "1 to 4 lines, not 5"),
        ({"spent": []}, "'spent' has no points"),
        ({"a" * 27: POINTS}, "longer than 26 characters"),
        ({"a": [(0, -0.5)]}, "not -0.5"),
        ({"a": [(-1, 0)]}, "not -1"),
        ({"a": [(0, math.nan)]}, "not nan"),
        ({"a": [(math.inf, 0)]}, "not inf"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(series: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        curve(series=series)


def test_bars_that_fit_and_alternative_text_must_be_there() -> None:
    with pytest.raises(ValueError, match="at least one number"):
        bar_chart("t", {}, unit="ms", alt=ALT)
    with pytest.raises(ValueError, match="not -1"):
        bar_chart("t", {"a": -1}, unit="ms", alt=ALT)
    with pytest.raises(ValueError, match="longer than 26"):
        bar_chart("t", {"a" * 27: 1}, unit="ms", alt=ALT)
    with pytest.raises(ValueError, match="alt must say"):
        curve(alt=" ")
