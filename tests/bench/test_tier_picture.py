"""The picture of tokens a second over hit rates is an SVG that shows every point inside its frame."""

from xml.etree import ElementTree

from strata.bench.tier_picture import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, Point, draw

SVG = "{http://www.w3.org/2000/svg}"
POINTS = (Point(0.9, 150.0, 140.0, 160.0), Point(0.0, 80.0, 79.0, 82.0), Point(0.5, 100.0, 90.0, 101.0))


def test_every_size_is_a_point_at_its_place() -> None:
    root = ElementTree.fromstring(draw("a <card> & more", [Line("one", POINTS, ())]))
    circles = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in root.iter(f"{SVG}circle")]
    assert [x for x, _ in circles] == sorted(x for x, _ in circles)
    assert circles[0][0] == LEFT
    for x, y in circles:
        assert LEFT <= x <= WIDTH - RIGHT
        assert TOP <= y <= HEIGHT - BOTTOM
    assert [y for _, y in circles] == sorted((y for _, y in circles), reverse=True)  # more is higher
    assert "a <card> & more" in [each.text for each in root.iter(f"{SVG}text")]


def test_the_axis_ends_at_a_round_number_above_what_was_measured() -> None:
    texts = [each.text for each in ElementTree.fromstring(draw("", [Line("one", POINTS, ())])).iter(f"{SVG}text")]
    assert {"0", "40", "80", "120", "160", "200"} <= set(texts)


def test_a_limit_is_a_dashed_line_and_each_number_of_conversations_has_its_colour() -> None:
    lines = [Line("one", POINTS, ((0.0, 100.0), (1.0, 4000.0))), Line("two", POINTS, ())]
    found = list(ElementTree.fromstring(draw("", lines)).iter(f"{SVG}polyline"))
    assert ["stroke-dasharray" in each.attrib for each in found] == [False, True, False]
    assert found[0].attrib["stroke"] == found[1].attrib["stroke"] != found[2].attrib["stroke"]
    assert found[1].attrib["clip-path"] == "url(#page)"
