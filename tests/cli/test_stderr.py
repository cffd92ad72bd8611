"""Log messages that a command drops."""

import logging
from collections.abc import Iterator

import pytest

from coterie.cli.stderr import log_to_stderr


@pytest.fixture
def asyncio_logger() -> Iterator[logging.Logger]:
    both = [logging.getLogger("asyncio"), logging.getLogger()]
    before = [list(logger.filters) for logger in both]
    yield both[0]
    for logger, filters in zip(both, before, strict=True):
        logger.filters[:] = filters


def test_only_asyncios_warning_about_the_end_of_tls_is_dropped(
    asyncio_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("INFO")
    asyncio_logger.warning("returning true from eof_received() has no effect when using ssl")
    asyncio_logger.warning("socket.send() raised exception.")
    assert [record.message for record in caplog.records] == ["socket.send() raised exception."]


def test_an_error_that_py4j_also_raises_is_not_logged(
    asyncio_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("INFO")
    # py4j logs with the root logger.
    logging.error("Exception while sending command.")
    logging.error("Another word.")
    assert [record.message for record in caplog.records] == ["Another word."]
