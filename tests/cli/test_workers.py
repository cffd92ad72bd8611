"""`coterie group`, drains and restarts against what is no group of Coterie's, and what is said when one goes wrong."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from coterie.cli import workers
from coterie.cli.group_shown import ShownGroup, read_group
from coterie.nouns.errors import WorldError
from coterie.rest.group_views import UNREACHABLE
from tests.cli.test_plan import as_json, member, view

COMMANDS: dict[str, Callable[[str], None]] = {
    "group": lambda url: workers.show_group(url, as_json=False),
    "group --json": lambda url: workers.show_group(url, as_json=True),
    "drain": lambda url: workers.drain(url, "worker-1"),
    "uncordon": lambda url: workers.uncordon(url, "worker-1"),
    "restart": lambda url: workers.restart_rolling(url, timeout_s=5),
}


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Somebody who answers everything with ``body``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"version": "4.3.1"}', b"[]"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_group_is_said_in_words(command: str, body: bytes) -> None:
    with answering(body) as url, pytest.raises(WorldError, match=f"The answer of {url}.* (holds no group|is not that)"):
        COMMANDS[command](url)


def group_of(owned: str, *, state: str, left_to: str = "") -> ShownGroup:
    shown = read_group(as_json(view(members=(member("one", owned), member("two", left_to)))), source="it")
    one, two = shown.members
    return shown.model_copy(update={"members": (one.model_copy(update={"state": state}), two)})


@pytest.mark.parametrize(
    ("owned", "state", "left_to", "went_well"),
    [
        ("", "STABLE", "AC0", True),
        ("", UNREACHABLE, "AC0", True),
        ("AC0 AT0", "STABLE", "AC0 AT0", True),
        ("AC0 AT0", "STABLE", "AC0", False),
        ("AC0 AT0", UNREACHABLE, "AC0 AT0", False),
    ],
)
def test_a_worker_that_dies_while_it_drains_has_not_handed_over(
    owned: str, state: str, left_to: str, went_well: bool
) -> None:
    last = group_of(owned, state=state).members[0]
    after = group_of("", state="STABLE", left_to=left_to)
    if went_well:
        workers.check_handed_over(after, last)
    else:
        with pytest.raises(WorldError, match="one died while it drained; 2 jobs of it are those of a lost worker"):
            workers.check_handed_over(after, last)
