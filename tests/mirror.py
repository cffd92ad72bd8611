"""A Maven repository on loopback whose files a test chooses, and pinned jars that only this repository has."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

from coterie.spark.jars import Jar


def jar_of(name: str, content: bytes) -> Jar:
    """A jar that is pinned to ``content``."""
    return Jar(
        maven_group="org.example",
        artifact=name,
        version="1.0",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        class_name_to_check=None,
    )


class Mirror:
    """The responses of the server: a path's bytes, or the output of a function; 404 for other paths."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes | Callable[[BufferedIOBase], object]] = {}
        self.asked: list[str] = []

    def put(self, jar: Jar, content: bytes | Callable[[BufferedIOBase], object]) -> None:
        """``content``: the bytes, or a function that writes some of them, and returns when the connection is to end."""
        self.files[f"/{jar.path_in_repository}"] = content


@contextmanager
def serve() -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.asked.append(self.path)
            match mirror.files.get(self.path):
                case None:
                    self.send_error(404)
                case bytes() as content:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                case write:
                    self.send_response(200)
                    self.end_headers()
                    write(self.wfile)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        mirror = Mirror(f"http://127.0.0.1:{server.server_address[1]}")
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            serving.join()
