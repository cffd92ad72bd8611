"""The path of a request as segments, each percent-decoded once, and the paths of endpoints that such segments match."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from coterie.rest.problems import BadRequestError

_BAD_ESCAPE_PATTERN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SCHEME_AND_HOST_PATTERN = re.compile(rb"^https?://[^/]+", re.IGNORECASE)
_CONTROL_CHARACTER_PATTERN = re.compile("[\x00-\x1f\x7f]")


def path_segments(raw_path: bytes) -> tuple[str, ...]:
    """The segments of ``raw_path``, a path as the client sent it, without a slash at its end. Each segment is
    percent-decoded once: ``a%252Fb`` becomes ``a%2Fb``. As in Connect, ``;`` and what follows it in a segment are left
    out; a name that contains ``;`` is sent as ``%3B``.

    :raises BadRequestError: when the path has an empty segment or a wrong percent escape, or is not UTF-8, or contains
        a control character.
    """
    raw_segments = raw_path.removeprefix(b"/").removesuffix(b"/").split(b"/")
    if raw_segments == [b""]:
        return ()
    return tuple(_decode_segment_or_raise(raw_segment) for raw_segment in raw_segments)


def request_path_segments(request: Request) -> tuple[str, ...]:
    """The segments of the path of ``request``. If the request line contains a whole URL (RFC 9112, as for a
    proxy), its scheme and host are ignored.

    :raises BadRequestError: see :func:`path_segments`.
    """
    raw_path: bytes = request.scope["raw_path"]
    return path_segments(_SCHEME_AND_HOST_PATTERN.sub(b"", raw_path, count=1))


def _decode_segment_or_raise(raw_segment: bytes) -> str:
    raw_text = raw_segment.partition(b";")[0]
    if not raw_text:
        raise BadRequestError("HTTP 400 Bad Request: the path has an empty segment (//)")
    if _BAD_ESCAPE_PATTERN.search(raw_text):
        raise BadRequestError("HTTP 400 Bad Request: a % in the path is not followed by two hexadecimal digits")
    try:
        segment = unquote_to_bytes(raw_text).decode()
    except UnicodeDecodeError:
        raise BadRequestError("HTTP 400 Bad Request: the path is not UTF-8") from None
    if _CONTROL_CHARACTER_PATTERN.search(segment):
        raise BadRequestError("HTTP 400 Bad Request: the path contains a control character")
    return segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTemplate:
    """The path of endpoints, in which some segments are parameters. `match` refuses a request in which a parameter of
    one segment contains a slash (``%2F``)."""

    segments: tuple[str, ...]
    """The segments, each a literal, ``{name}`` (a parameter of one segment) or ``{name:path}`` (a parameter of one
    segment or several, joined by slashes; at most one in a template)."""

    @classmethod
    def parse(cls, path: str) -> Self:
        """The template of ``path``, for example ``/connectors/{connector}``."""
        return cls(segments=tuple(segment for segment in path.split("/") if segment))

    def match(self, segments: Sequence[str]) -> Mapping[str, str] | None:
        """The values of the parameters in ``segments``, the segments of a request's path, by name; None when the
        template does not match.

        :raises BadRequestError: when the value of a parameter ``{name}`` contains a slash (``%2F``); only that of a
            parameter ``{name:path}`` may.
        """
        span = len(segments) - len(self.segments) + 1
        """The number of segments that ``{name:path}`` stands for."""
        values: dict[str, str] = {}
        position = 0
        for expected in self.segments:
            is_path = expected.endswith(":path}")
            width = span if is_path else 1
            actual = segments[position : position + width]
            position += width
            if not actual or (not expected.startswith("{") and actual[0] != expected):
                return None
            if is_path:
                values[expected[1 : -len(":path}")]] = "/".join(actual)
            elif expected.startswith("{"):
                values[expected[1:-1]] = actual[0]
        if position != len(segments):
            return None
        one_segment = [values[segment[1:-1]] for segment in self.segments if segment[1:-1] in values]
        if any("/" in value for value in one_segment):
            raise BadRequestError("HTTP 400 Bad Request: the path contains an escaped slash (%2F)")
        return values
