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

HTTP_TIMEOUT = httpx.Timeout(30, connect=15)
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


def fetch_and_replace_jars(
    jars: Iterable[Jar],
    folder: Path,
    *,
    repository_url: str = MAVEN_CENTRAL,
    on_chunk: Callable[[Jar, int], None] = lambda jar, count: None,
) -> None:
    """Fetch each of ``jars`` into ``folder``, which is created if missing; existing files are replaced.

    ``repository_url``: the URL of the Maven repository. ``on_chunk`` is called with the jar and the number of bytes of
    each received chunk; its exceptions are raised unchanged and end the fetch.

    :raises WorldError: when the folder cannot be written, the environment's proxy or certificates cannot be used, the
        repository does not respond or does not return a jar, or a file does not have the pinned SHA-256. Jars that were
        fetched before remain.
    """
    with _open_http_client() as client:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_abandoned_downloads(folder)
            for jar in jars:
                _fetch_jar(client, jar, folder, repository_url.rstrip("/"), on_chunk)
        except OSError as error:
            raise WorldError(
                f"The jars cannot be written to {folder}: {error.strerror}. Name a folder that can be written: "
                "coterie jars fetch --to FOLDER, and jars.dir=FOLDER in the workers' files"
            ) from error


def _open_http_client() -> httpx.Client:
    """An HTTP client with the proxy and the certificates of the environment.

    :raises WorldError: when these cannot be used.
    """
    try:
        return httpx.Client(timeout=HTTP_TIMEOUT, follow_redirects=True, headers={"Accept-Encoding": "identity"})
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        raise WorldError(
            f"The environment's proxy (HTTPS_PROXY, ALL_PROXY) or certificates (SSL_CERT_FILE) cannot be used: {error}"
        ) from error


def _fetch_jar(
    client: httpx.Client, jar: Jar, folder: Path, repository_url: str, on_chunk: Callable[[Jar, int], None]
) -> None:
    """Fetch one jar into ``folder``, compare its SHA-256 with the pinned one, and replace an existing file.
    ``repository_url`` ends without a slash. ``on_chunk``: see :func:`fetch_and_replace_jars`.

    :raises WorldError: as :func:`fetch_and_replace_jars`.
    """
    shown_url = _url_without_credentials(repository_url)
    digest, size_bytes = hashlib.sha256(), 0
    with _create_locked_download_file(folder, jar) as download:
        try:
            with client.stream("GET", f"{repository_url}/{jar.path_in_repository}") as response:
                if response.status_code != httpx.codes.OK:
                    status = f"{response.status_code} {response.reason_phrase}".rstrip()
                    reason = f"it returned {status} for {jar.path_in_repository}"
                    raise WorldError(_fetch_failure_message(jar, folder, shown_url, reason))
                for chunk in response.iter_bytes():
                    size_bytes += len(chunk)
                    if size_bytes > jar.size_bytes:
                        raise WorldError(
                            _wrong_file_message(jar, shown_url, f"it has more than {jar.size_bytes} bytes")
                        )
                    digest.update(chunk)
                    download.temporary_file.write(chunk)
                    on_chunk(jar, len(chunk))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise WorldError(_fetch_failure_message(jar, folder, shown_url, reason)) from error
        if (sha256 := digest.hexdigest()) != jar.sha256:
            raise WorldError(_wrong_file_message(jar, shown_url, f"its SHA-256 is {sha256} instead of {jar.sha256}"))
        download.temporary_file.flush()
        os.fsync(download.temporary_file.fileno())
        download.temporary_path.replace(folder / jar.file_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JarDownload:
    """The temporary file of a jar while it is fetched."""

    temporary_file: BinaryIO
    temporary_path: Path


@contextmanager
def _create_locked_download_file(folder: Path, jar: Jar) -> Iterator[JarDownload]:
    """Context manager: a new, locked temporary file in ``folder``. It is removed after the block unless the block has
    renamed it."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{jar.file_name}.", suffix=_DOWNLOAD_SUFFIX)
        try:
            with open(descriptor, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another fetch may have removed the file before this one took the lock.
                if os.fstat(descriptor).st_nlink == 0:
                    continue
                os.fchmod(descriptor, 0o644)
                yield JarDownload(temporary_file=file, temporary_path=Path(name))
                return
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)


def _remove_abandoned_downloads(folder: Path) -> None:
    """Remove the temporary files of fetches that were killed. A running fetch holds the lock of its file; the lock of a
    killed fetch is free."""
    for path in folder.glob(f".*.jar.*{_DOWNLOAD_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _fetch_failure_message(jar: Jar, folder: Path, shown_url: str, reason: str) -> str:
    """The message that ``jar`` could not be fetched, why, and what to do. ``shown_url``: the repository's URL without a
    password."""
    return (
        f"{jar.file_name} could not be fetched from {shown_url}: {reason}. Check the network and the proxy "
        "(HTTPS_PROXY), or name a mirror of Maven Central (coterie jars fetch --mirror URL, jars.mirror in a worker's "
        f"file), or put the file into {folder} by hand"
    )


def _wrong_file_message(jar: Jar, shown_url: str, difference: str) -> str:
    """The message that the repository's file of ``jar`` is not the pinned file, and what to do. ``shown_url``: the
    repository's URL without a password."""
    return (
        f"The file {jar.file_name} at {shown_url} is not the one that Coterie was tested with: {difference}. The file "
        "was not kept; fetch from another mirror (coterie jars fetch --mirror URL, jars.mirror in a worker's file)"
    )


def _url_without_credentials(url: str) -> str:
    """``url`` without its user name and password."""
    url_parts = urlsplit(url)
    return url_parts._replace(netloc=url_parts.netloc.rpartition("@")[2]).geturl()
