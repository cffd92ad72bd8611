"""Schemas by API key and version."""

from collections.abc import Callable
from typing import Any

import pytest

from coterie.broker.apis.table import APIS
from coterie.wire.schemas import API_VERSIONS, UnknownApiError, header_version, request_schema, response_schema

EVERY_VERSION = [(key, version) for key in sorted(APIS) for version in APIS[key].versions]


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_every_served_version_has_both_schemas(api_key: int, version: int) -> None:
    request, response = request_schema(api_key, version), response_schema(api_key, version)
    assert (
        (request.__api_key__, request.__version__) == (response.__api_key__, response.__version__) == (api_key, version)
    )
    assert header_version(request) == (2 if request.__flexible__ else 1)
    # A client that sends too new an ApiVersions request must be able to read the response (KIP-511).
    assert header_version(response) == (1 if response.__flexible__ and api_key != API_VERSIONS else 0)


@pytest.mark.parametrize("look_up", [request_schema, response_schema])
def test_an_unknown_api_or_version_is_refused_each_time(look_up: Callable[[int, int], type[Any]]) -> None:
    for api_key, version in ((11, 99), (11, -1), (999, 0), (-3, 0)) * 2:
        with pytest.raises(UnknownApiError, match=f"API {api_key} does not exist, or has no version {version}"):
            look_up(api_key, version)
