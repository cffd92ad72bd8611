"""Listening, and the end of it."""

import pytest

from coterie.nouns.errors import WorldError
from coterie.rest.server import bind


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(WorldError, match=rf"Port {port} .* is in use.*listeners"):
            bind("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(WorldError, match=r"Cannot listen at 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0)
