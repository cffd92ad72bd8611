"""Listening at an address, and errors in doing so."""

import pytest

from coterie.nouns.errors import WorldError
from coterie.rest.server import open_listener


def test_a_taken_port_is_named_with_advice() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(WorldError, match=rf"Port {port} .* is in use.*listeners"):
            open_listener("127.0.0.1", port)


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(WorldError, match=r"Cannot listen at 192\.0\.2\.1:0"):
        open_listener("192.0.2.1", 0)
