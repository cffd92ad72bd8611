"""The versions of connector configs as entity tags: the headers ``ETag`` and ``If-Match`` (RFC 9110)."""

import re

from starlette.requests import Request

from coterie.herder.requests.reads import ConnectorInfo
from coterie.herder.requests.writes import IfMatch

_ENTITY_TAG_PATTERN = re.compile(r'(W/)?"([^"]*)"')
_CONFIG_VERSION_PATTERN = re.compile("0|[1-9][0-9]{0,18}")
"""A version as :func:`etag_headers` writes it: at most 64 bits."""


def etag_headers(info: ConnectorInfo) -> dict[str, str]:
    """The header ``ETag`` of a response that contains the connector's config: the version of the config. Empty if the
    version is not known."""
    return {} if info.config_version is None else {"ETag": f'"{info.config_version}"'}


def if_match_of(request: Request) -> IfMatch | None:
    """The condition in the header ``If-Match`` of ``request``: the versions of the config, one of which the connector
    must have; ``*`` means any version. None without the header. A weak tag, or a tag that is no version of a config,
    matches no connector."""
    lines = request.headers.getlist("if-match")
    if not lines:
        return None
    value = ",".join(lines)
    if value.strip() == "*":
        return IfMatch(config_versions=None)
    tags = _ENTITY_TAG_PATTERN.findall(value)
    return IfMatch(
        config_versions=frozenset(int(tag) for weak, tag in tags if not weak and _CONFIG_VERSION_PATTERN.fullmatch(tag))
    )
