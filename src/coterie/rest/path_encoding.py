"""Encodes segments as the path of a request. Separate from :mod:`coterie.rest.paths`, which reads such paths and
imports the server's packages: commands start faster without these."""

from collections.abc import Sequence
from urllib.parse import quote


def encoded_segment(text: str) -> str:
    """``text`` as one segment of a path. ``.`` and ``..`` are escaped, too: clients resolve them in a path."""
    encoded = quote(text, safe="")
    return encoded.replace(".", "%2E") if text in (".", "..") else encoded


def encoded_path(segments: Sequence[str]) -> str:
    """The path with these ``segments``, which :func:`.path_segments` reads."""
    return "/" + "/".join(encoded_segment(segment) for segment in segments)
