"""Checks the media types of a request: this API reads JSON only, and writes it with few exceptions."""

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request

from coterie.rest.endpoints import JSON
from coterie.rest.problems import BadRequestError, NotJsonError

_UNSUPPORTED = "HTTP 415 Unsupported Media Type"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}")
"""A media type or a range of media types, without parameters."""


def check_content_type(request: Request, *, reads_body: bool, accepts_any_type: bool) -> None:
    """Check the ``Content-Type`` of ``request``. A body that the endpoint reads must be JSON. If the request has the
    header, it must be JSON also when the body is empty or not read, as in Connect; for a body that is not read also a
    range that contains JSON. ``reads_body``: whether the endpoint reads the body. ``accepts_any_type``: whether the
    header may be any media type; only for endpoints that read no body.

    :raises BadRequestError: when the ``Content-Type`` is not a media type, or there are several.
    :raises NotJsonError: when the ``Content-Type`` is another one than JSON, or a body that is read has none.
    """
    content_type = ",".join(request.headers.getlist("content-type"))
    if not content_type:
        if reads_body and _has_body(request):
            raise NotJsonError(_UNSUPPORTED)
        return
    media_type = content_type.partition(";")[0].strip().lower()
    if _MEDIA_TYPE.fullmatch(media_type) is None:
        raise BadRequestError(f"HTTP 400 Bad Request: the Content-Type {content_type!r} is not a media type")
    accepted = (JSON,) if reads_body else (JSON, "application/*", "*/*")
    if not accepts_any_type and media_type not in accepted:
        raise NotJsonError(_UNSUPPORTED)


def check_accept_header(request: Request, media_type: str) -> None:
    """Check that the client accepts ``media_type``, which has no parameters.

    :raises HTTPException: with status 406, when the ``Accept`` headers have no range that contains ``media_type``.
    """
    ranges = [part.strip() for value in request.headers.getlist("accept") for part in value.split(",") if part.strip()]
    if ranges and not any(_is_accepted(media_type, one) for one in ranges):
        raise HTTPException(406)


def _is_accepted(media_type: str, media_range: str) -> bool:
    """Whether ``media_range``, one item of an ``Accept`` header, contains ``media_type``. As in Connect, the quality
    (``;q=``) is ignored. ``*`` alone is accepted because older Java clients send it."""
    type_, _, subtype = media_type.partition("/")
    accepted = media_range.partition(";")[0].strip().lower()
    return accepted in (media_type, f"{type_}/*", f"*/{subtype}", "*/*", "*")


def _has_body(request: Request) -> bool:
    """Whether ``request`` has a body, according to its headers."""
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
