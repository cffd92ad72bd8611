"""What a command's log leaves out."""

import logging
from collections.abc import Iterator

import pytest

from coterie.cli.stderr import log_to_stderr


@pytest.fixture
def asyncios() -> Iterator[logging.Logger]:
    logger = logging.getLogger("asyncio")
    before = list(logger.filters)
    yield logger
    logger.filters[:] = before


def test_asyncios_word_about_the_end_of_tls_is_left_out_and_no_other(
    asyncios: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    log_to_stderr("INFO")
    asyncios.warning("returning true from eof_received() has no effect when using ssl")
    asyncios.warning("socket.send() raised exception.")
    assert [record.message for record in caplog.records] == ["socket.send() raised exception."]
