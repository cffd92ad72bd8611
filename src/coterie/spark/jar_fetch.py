"""Fetches pinned jars from a Maven repository into a folder that workers read.

A jar is written to a temporary file, compared with its pinned SHA-256, and renamed: a file with a jar's name is always
complete, also when a fetch is killed. Several fetches into one folder at the same time are safe; a jar may then be
fetched twice. Each fetch holds a lock on the temporary file that it writes, and removes temporary files without a lock.
"""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx

from coterie.config.defaults import MAVEN_CENTRAL
from coterie.nouns.errors import WorldError
from coterie.spark.jars import Jar

TIMEOUT = httpx.Timeout(30, connect=15)
"""Time limits in seconds: to connect, and to wait for the next bytes of a response."""
_DOWNLOAD_SUFFIX = ".part"
"""End of the name of a temporary file, into which a jar is fetched."""


def has_pinned_digest(jar: Jar, folder: Path) -> bool | None:
    """Whether the file of ``jar`` in ``folder`` has the pinned SHA-256; None when there is no such file.

    :raises WorldError: when the file cannot be read.
    """
    try:
        with (folder / jar.file_name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WorldError(f"The jar {folder / jar.file_name} cannot be read: {error.strerror}") from error


def fetch(
    jars: Iterable[Jar],
    folder: Path,
    *,
    mirror: str = MAVEN_CENTRAL,
    on_bytes: Callable[[Jar, int], None] = lambda jar, count: None,
) -> None:
    """Fetch each of ``jars`` into ``folder``, which is created if missing; existing files are replaced.

    ``mirror``: the URL of the Maven repository. ``on_bytes`` is called with the jar and the number of bytes of each
    received piece; its exceptions are raised unchanged and end the fetch.

    :raises WorldError: when the folder cannot be written, the environment's proxy or certificates cannot be used, the
        mirror does not respond or does not return a jar, or a file does not have the pinned SHA-256. Jars that were
        fetched before remain.
    """
    with _client() as client:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            for jar in jars:
                _fetch_one(client, jar, folder, mirror.rstrip("/"), on_bytes)
        except OSError as error:
            raise WorldError(
                f"The jars cannot be written to {folder}: {error.strerror}. Name a folder that can be written: "
                "coterie jars fetch --to FOLDER, and jars.dir=FOLDER in the workers' files"
            ) from error


def _client() -> httpx.Client:
    """An HTTP client with the proxy and the certificates of the environment.

    :raises WorldError: when these cannot be used.
    """
    try:
        return httpx.Client(timeout=TIMEOUT, follow_redirects=True, headers={"Accept-Encoding": "identity"})
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise WorldError(
            f"The environment's proxy (HTTPS_PROXY, ALL_PROXY) or certificates (SSL_CERT_FILE) cannot be used: {error}"
        ) from error


def _fetch_one(client: httpx.Client, jar: Jar, folder: Path, mirror: str, on_bytes: Callable[[Jar, int], None]) -> None:
    """Fetch one jar; see :func:`fetch`. ``mirror`` ends without a slash."""
    shown = _without_password(mirror)
    digest, size_bytes = hashlib.sha256(), 0
    with _download_file(folder, jar) as part:
        try:
            with client.stream("GET", f"{mirror}/{jar.path}") as response:
                if response.status_code != httpx.codes.OK:
                    reason = f"it returned {response.status_code} {response.reason_phrase} for {jar.path}".rstrip()
                    raise WorldError(_not_fetched(jar, folder, shown, reason))
                for piece in response.iter_bytes():
                    size_bytes += len(piece)
                    if size_bytes > jar.size_bytes:
                        raise WorldError(_not_pinned(jar, shown, f"it has more than {jar.size_bytes} bytes"))
                    digest.update(piece)
                    part.file.write(piece)
                    on_bytes(jar, len(piece))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise WorldError(_not_fetched(jar, folder, shown, reason)) from error
        if (found := digest.hexdigest()) != jar.sha256:
            raise WorldError(_not_pinned(jar, shown, f"its SHA-256 is {found} instead of {jar.sha256}"))
        part.file.flush()
        os.fsync(part.file.fileno())
        part.path.replace(folder / jar.file_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JarDownload:
    """The temporary file of a jar while it is fetched."""

    file: BinaryIO
    path: Path


@contextmanager
def _download_file(folder: Path, jar: Jar) -> Iterator[JarDownload]:
    """A new, locked temporary file in ``folder``. It is removed after the block unless the block has renamed it."""
    while True:
        number, name = tempfile.mkstemp(dir=folder, prefix=f".{jar.file_name}.", suffix=_DOWNLOAD_SUFFIX)
        try:
            with open(number, "wb") as part:
                fcntl.flock(part, fcntl.LOCK_EX)
                # Another fetch may have removed the file before this one took the lock.
                if os.fstat(number).st_nlink == 0:
                    continue
                os.fchmod(number, 0o644)
                yield JarDownload(file=part, path=Path(name))
                return
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of fetches that were killed. A running fetch holds the lock of its file; the lock of a
    killed fetch is free."""
    for path in folder.glob(f".*.jar.*{_DOWNLOAD_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _not_fetched(jar: Jar, folder: Path, mirror: str, reason: str) -> str:
    """The message that ``jar`` could not be fetched, why, and what to do."""
    return (
        f"{jar.file_name} could not be fetched from {mirror}: {reason}. Check the network and the proxy (HTTPS_PROXY), "
        "or name a mirror of Maven Central (coterie jars fetch --mirror URL, jars.mirror in a worker's file), or put "
        f"the file into {folder} by hand"
    )


def _not_pinned(jar: Jar, mirror: str, difference: str) -> str:
    """The message that the mirror's file of ``jar`` is not the pinned file, and what to do."""
    return (
        f"The file {jar.file_name} at {mirror} is not the one that Coterie was tested with: {difference}. The file was "
        "not kept; fetch from another mirror (coterie jars fetch --mirror URL, jars.mirror in a worker's file)"
    )


def _without_password(url: str) -> str:
    """``url`` without its user name and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
