"""What a command's log leaves out."""

import logging
from collections.abc import Iterator

import pytest

from coterie.cli.stderr import log_to_stderr


@pytest.fixture
def asyncios() -> Iterator[logging.Logger]:
    both = [logging.getLogger("asyncio"), logging.getLogger()]
    before = [list(logger.filters) for logger in both]
    yield both[0]
    for logger, filters in zip(both, before, strict=True):
        logger.filters[:] = filters


def test_asyncios_word_about_the_end_of_tls_is_left_out_and_no_other(
    asyncios: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("INFO")
    asyncios.warning("returning true from eof_received() has no effect when using ssl")
    asyncios.warning("socket.send() raised exception.")
    assert [record.message for record in caplog.records] == ["socket.send() raised exception."]


def test_what_py4j_raises_as_well_is_not_logged_with_a_trace(
    asyncios: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("INFO")
    # As py4j does it: with the root logger.
    logging.error("Exception while sending command.")
    logging.error("Another word.")
    assert [record.message for record in caplog.records] == ["Another word."]
