"""Python packages that only some connectors need, and that come with an extra of the package coterie."""

import importlib
from collections.abc import Mapping

MODULES: Mapping[str, str] = {"delta": "deltalake", "postgres": "psycopg", "python": "pandas"}
"""What each extra installs."""


def missing_extra(extra: str) -> str | None:
    """Why this worker cannot use what ``extra`` installs, and what to do; None when it can."""
    module = MODULES[extra]
    try:
        # Imported, not looked for: psycopg without PostgreSQL's library is there and does not work.
        importlib.import_module(module)
    except ImportError as error:
        return (
            f"The worker's Python cannot import {module} ({error}): run `pip install 'coterie[{extra}]'` in the "
            "environment of every worker, then restart the workers"
        )
    return None
