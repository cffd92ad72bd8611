"""The parameters in the path and the query of a request, read as Connect reads them."""

import re

from starlette.exceptions import HTTPException
from starlette.requests import Request

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId


def connector_in_path(request: Request) -> ConnectorName:
    """The connector's name in the path of ``request``."""
    return ConnectorName(request.path_params["connector"])


def task_in_path(request: Request) -> ConnectorTaskId:
    """The task's id in the path of ``request``.

    :raises HTTPException: with status 404, when the task in the path is not a number of 32 bits.
    """
    number: str = request.path_params["task"]
    if re.fullmatch(r"[+-]?[0-9]{1,10}", number) is None or abs(int(number)) >= 2**31:
        raise HTTPException(404)  # Connect's router returns 404 for a path without a number here.
    return ConnectorTaskId(connector_in_path(request), int(number))


def query_value(request: Request, name: str) -> str | None:
    """The value of the query parameter ``name`` of ``request``; of several values the first one, as in Connect. None
    when the parameter is missing."""
    return next(iter(request.query_params.getlist(name)), None)


def is_query_value_true(request: Request, name: str, *, default: bool = False) -> bool:
    """The query parameter ``name`` of ``request`` as Connect reads it: ``true`` in upper or lower case means true, and
    every other value false; ``default`` when the parameter is missing or empty."""
    value = query_value(request, name)
    return value.lower() == "true" if value else default
