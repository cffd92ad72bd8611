"""An HTTP server with a test's responses, for a command that sends requests to a worker."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.certificates import Pair

Answer = Callable[[str, str], tuple[int, bytes]]
"""Status and body of the response to a method and a path; raises ConnectionAbortedError to close the connection without
a response."""


AnswerWithLogin = Callable[[str, str, str | None], tuple[int, bytes]]
"""Status and body of the response to a method, a path and the header Authorization, which is None if it is missing."""


def http_server(answer: Answer, pair: Pair | None = None) -> AbstractContextManager[str]:
    """The URL of a server that responds with ``answer``. With the certificate ``pair``, it serves https."""
    return http_server_with_login(lambda method, path, authorization: answer(method, path), pair)


@contextmanager
def http_server_with_login(answer: AnswerWithLogin, pair: Pair | None = None) -> Iterator[str]:
    """As :func:`http_server`, for an ``answer`` that depends on the log-in."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                status, body = answer(self.command, self.path, self.headers.get("Authorization"))
            except ConnectionAbortedError:  # The test breaks the connection.
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if pair is not None:
            use_certificate(server, pair)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'http' if pair is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answering(body: bytes) -> AbstractContextManager[str]:
    """A server that answers every request with ``body``."""
    return http_server(lambda method, path: (200, body))


def use_certificate(server: ThreadingHTTPServer, pair: Pair) -> None:
    """Make ``server``, which has not started, serve https with ``pair``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
