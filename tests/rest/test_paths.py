import pytest

from coterie.rest.paths import PathTemplate, path_segments
from coterie.rest.problems import BadRequestError

CONNECTOR = PathTemplate.parse("/connectors/{connector}")
DRAIN = PathTemplate.parse("/coterie/workers/{worker:path}/drain")


@pytest.mark.parametrize(
    ("raw_path", "segments"),
    [
        (b"/", ()),
        (b"/connectors", ("connectors",)),
        (b"/connectors/", ("connectors",)),
        (b"/connectors/a/status/", ("connectors", "a", "status")),
        (b"/connectors/a%252Fb", ("connectors", "a%2Fb")),
        (b"/connectors/a%2Fb", ("connectors", "a/b")),
        (b"/connectors/a;x=1/tasks;y", ("connectors", "a", "tasks")),
        (b"/connectors/a%3Bb", ("connectors", "a;b")),
        (b"/connectors/../config", ("connectors", "..", "config")),
        (b"/connectors/%F0%9F%98%80", ("connectors", "😀")),
        (b"/connectors/a+b%20c", ("connectors", "a+b c")),
    ],
)
def test_each_segment_is_decoded_once(raw_path: bytes, segments: tuple[str, ...]) -> None:
    assert path_segments(raw_path) == segments


@pytest.mark.parametrize(
    "raw_path",
    [b"//connectors", b"/connectors//a", b"/connectors//", b"/%", b"/%zz", b"/%4", b"/%FF", b"/%0A", b"/%00"],
)
def test_a_path_that_is_no_text_is_refused(raw_path: bytes) -> None:
    with pytest.raises(BadRequestError, match=r"^HTTP 400 Bad Request: "):
        path_segments(raw_path)


def test_a_parameter_is_one_segment_unless_it_is_a_path() -> None:
    assert CONNECTOR.match(("connectors", "a")) == {"connector": "a"}
    assert CONNECTOR.match(("connectors", "a", "status")) is None
    assert CONNECTOR.match(("connectors",)) is None
    assert CONNECTOR.match(("workers", "a")) is None
    assert DRAIN.match(("coterie", "workers", "rack", "1", "drain")) == {"worker": "rack/1"}
    assert DRAIN.match(("coterie", "workers", "rack/1", "drain")) == {"worker": "rack/1"}
    assert DRAIN.match(("coterie", "workers", "drain")) is None
    assert PathTemplate.parse("/").match(()) == {}


def test_an_escaped_slash_does_not_separate_segments() -> None:
    with pytest.raises(BadRequestError, match="escaped slash"):
        CONNECTOR.match(("connectors", "src1/status"))
