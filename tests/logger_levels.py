"""Keeps the levels of loggers: workers under test run in the process of the tests, and clients may set the levels of
all loggers of a worker."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_logger_levels() -> Iterator[None]:
    """Context manager: at its end all loggers get the levels that they had at its beginning. The level of a logger that
    was created in between becomes NOTSET, and one with the name of a Java class is removed: the workers of later tests
    would list it."""
    before = {one: one.level for one in _loggers()}
    by_name = logging.root.manager.loggerDict
    names_before = set(by_name)
    try:
        yield
    finally:
        for one in _loggers():
            if one.level != (level := before.get(one, logging.NOTSET)):
                one.setLevel(level)
        for name in by_name.keys() - names_before:
            if name.startswith(("org.", "brand.")):
                del by_name[name]


def _loggers() -> list[logging.Logger]:
    known = list(logging.root.manager.loggerDict.values())
    return [logging.root, *(one for one in known if isinstance(one, logging.Logger))]
