"""Python packages that only some connectors need, and that come with an extra of the package coterie."""

import importlib
from collections.abc import Mapping

MODULE_BY_EXTRA: Mapping[str, str] = {"delta": "deltalake", "postgres": "psycopg", "python": "pandas"}
"""By extra of the package coterie: a Python module that can be imported only if the extra is installed."""


def missing_extra_message(extra: str) -> str | None:
    """The message why this worker cannot import the module of ``extra`` (:data:`MODULE_BY_EXTRA`), and what to do; None
    when it can."""
    module = MODULE_BY_EXTRA[extra]
    try:
        # Import the module: psycopg can be found but fails on import when PostgreSQL's library is missing.
        importlib.import_module(module)
    except ImportError as error:
        return (
            f"The worker's Python cannot import {module} ({error}): run `pip install 'coterie[{extra}]'` in the "
            "environment of every worker, then restart the workers"
        )
    return None
