"""Jars are fetched completely or not at all, whatever the mirror, the folder and other fetches do."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import httpx
import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.jar_fetch import fetch_and_replace_jars, has_pinned_digest
from coterie.spark.jars import Jar
from tests.mirror import Mirror, jar_of, serve
from tests.ports import free_ports

CONTENT = b"a jar " * 50_000
JAR = jar_of("first", CONTENT)
OTHER = jar_of("second", b"another jar")


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve() as mirror:
        mirror.put(JAR, CONTENT)
        mirror.put(OTHER, b"another jar")
        yield mirror


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_jar_is_in_its_folder_under_its_own_name(mirror: Mirror, tmp_path: Path) -> None:
    pieces: list[int] = []
    fetch_and_replace_jars(
        [JAR, OTHER], tmp_path / "new", repository_url=mirror.url, on_chunk=lambda jar, count: pieces.append(count)
    )
    assert names_in(tmp_path / "new") == ["first-1.0.jar", "second-1.0.jar"]
    assert (tmp_path / "new" / "first-1.0.jar").read_bytes() == CONTENT
    assert sum(pieces) == JAR.size_bytes + OTHER.size_bytes
    assert mirror.asked == ["/org/example/first/1.0/first-1.0.jar", "/org/example/second/1.0/second-1.0.jar"]


def test_the_url_of_a_mirror_may_end_with_a_slash(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files = {f"/maven2{path}": content for path, content in mirror.files.items()}
    fetch_and_replace_jars([JAR], tmp_path, repository_url=f"{mirror.url}/maven2/")
    assert has_pinned_digest(JAR, tmp_path)


def test_the_error_without_a_network_names_the_jar_the_mirror_and_the_alternatives(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(WorldError) as raised:
        fetch_and_replace_jars([JAR], tmp_path, repository_url=url)
    for word in ("first-1.0.jar", url, "refused", "HTTPS_PROXY", "--mirror URL", "jars.mirror", str(tmp_path)):
        assert word in str(raised.value)
    assert names_in(tmp_path) == []


def test_the_error_for_a_missing_jar_contains_the_response_and_earlier_jars_stay(
    mirror: Mirror, tmp_path: Path
) -> None:
    del mirror.files[f"/{OTHER.path_in_repository}"]
    with pytest.raises(WorldError, match=r"second-1\.0\.jar .* it returned 404 Not Found"):
        fetch_and_replace_jars([JAR, OTHER], tmp_path, repository_url=mirror.url)
    assert names_in(tmp_path) == ["first-1.0.jar"]


@pytest.mark.parametrize("content", [b"b jar " * 50_000, CONTENT + b"!", CONTENT[:-1], b""])
def test_a_file_with_another_checksum_is_refused_and_not_kept(mirror: Mirror, tmp_path: Path, content: bytes) -> None:
    mirror.put(JAR, content)
    with pytest.raises(WorldError, match=r"first-1\.0\.jar at .* is not the one that Coterie was tested with"):
        fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url)
    assert names_in(tmp_path) == []


def test_a_connection_that_ends_in_the_middle_leaves_nothing(mirror: Mirror, tmp_path: Path) -> None:
    mirror.put(JAR, lambda out: out.write(CONTENT[: len(CONTENT) // 2]))
    with pytest.raises(WorldError):
        fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url)
    assert names_in(tmp_path) == []


def test_a_damaged_jar_is_replaced(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / JAR.file_name).write_bytes(b"damaged")
    assert has_pinned_digest(JAR, tmp_path) is False
    fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url)
    assert has_pinned_digest(JAR, tmp_path) is True


def test_a_folder_that_cannot_be_written_is_named_with_the_option(mirror: Mirror) -> None:
    with pytest.raises(WorldError) as raised:
        fetch_and_replace_jars([JAR], Path("/sys/coterie/jars"), repository_url=mirror.url)
    for word in ("/sys/coterie/jars", "--to FOLDER", "jars.dir=FOLDER"):
        assert word in str(raised.value)
    assert mirror.asked == []


def test_a_password_of_the_mirror_is_in_no_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError) as raised:
        fetch_and_replace_jars([JAR], tmp_path, repository_url=f"http://me:hidden@127.0.0.1:{free_ports(1)[0]}/maven")
    assert "hidden" not in str(raised.value)


def test_a_fetch_from_a_mirror_that_stops_sending_times_out(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.jar_fetch.HTTP_TIMEOUT", httpx.Timeout(0.2))
    gate = Gate(fetches=1)
    mirror.put(JAR, gate)
    waiting = threading.Thread(target=gate.are_in_the_middle.wait)
    waiting.start()
    with pytest.raises(WorldError, match=r"first-1\.0\.jar could not be fetched from http://.*timed out"):
        fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url)
    gate.go_on.set()
    waiting.join()
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("ALL_PROXY", "nonsense://proxy:3128"), ("SSL_CERT_FILE", "/none/certificates.pem")]
)
def test_a_proxy_or_certificates_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(WorldError, match=rf"The environment's .*{variable}.* cannot be used"):
        fetch_and_replace_jars([JAR], tmp_path)


class Gate:
    """A mirror's file; its first half is sent at once, the second half when the test opens the gate."""

    def __init__(self, fetches: int) -> None:
        self.are_in_the_middle = threading.Barrier(fetches + 1, timeout=60)
        self.go_on = threading.Event()

    def __call__(self, out: BufferedIOBase) -> None:
        out.write(CONTENT[:100_000])
        out.flush()
        self.are_in_the_middle.wait()
        self.go_on.wait(60)
        out.write(CONTENT[100_000:])


def test_two_concurrent_fetches_both_succeed_and_leave_one_file(mirror: Mirror, tmp_path: Path) -> None:
    gate = Gate(fetches=2)
    mirror.put(JAR, gate)
    failures: list[BaseException] = []

    def fetched() -> None:
        try:
            fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    fetching = [threading.Thread(target=fetched) for _ in range(2)]
    for one in fetching:
        one.start()
    gate.are_in_the_middle.wait()
    assert has_pinned_digest(JAR, tmp_path) is None, "a file with a jar's name must be complete"
    gate.go_on.set()
    for one in fetching:
        one.join()
    assert failures == []
    assert names_in(tmp_path) == ["first-1.0.jar"]
    assert has_pinned_digest(JAR, tmp_path)


FETCH = """
import sys
from pathlib import Path
from coterie.spark.jar_fetch import fetch_and_replace_jars
from tests.spark.test_jar_fetch import JAR
fetch_and_replace_jars([JAR], Path(sys.argv[1]), repository_url=sys.argv[2])
"""


def test_a_killed_fetch_leaves_no_jar_and_the_next_fetch_removes_its_file(mirror: Mirror, tmp_path: Path) -> None:
    gate = Gate(fetches=1)
    mirror.put(JAR, gate)
    killed = subprocess.Popen([sys.executable, "-c", FETCH, str(tmp_path), mirror.url])
    gate.are_in_the_middle.wait()
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    gate.go_on.set()
    (left,) = names_in(tmp_path)
    assert left.startswith(".first-1.0.jar."), "the kill did not hit the fetch"
    mirror.put(JAR, CONTENT)
    fetch_and_replace_jars([OTHER], tmp_path, repository_url=mirror.url)
    assert names_in(tmp_path) == ["second-1.0.jar"]


def test_a_fetch_does_not_remove_a_file_that_another_fetch_still_writes(mirror: Mirror, tmp_path: Path) -> None:
    gate = Gate(fetches=1)
    mirror.put(JAR, gate)
    slow = threading.Thread(
        target=fetch_and_replace_jars, args=([JAR], tmp_path), kwargs={"repository_url": mirror.url}
    )
    slow.start()
    gate.are_in_the_middle.wait()
    fetch_and_replace_jars([OTHER], tmp_path, repository_url=mirror.url)
    gate.go_on.set()
    slow.join()
    assert names_in(tmp_path) == ["first-1.0.jar", "second-1.0.jar"]


def test_an_exception_of_the_observer_ends_the_fetch_and_leaves_nothing(mirror: Mirror, tmp_path: Path) -> None:
    def refuse(jar: Jar, count: int) -> None:
        raise WorldError("the worker is told to end")

    with pytest.raises(WorldError, match="told to end"):
        fetch_and_replace_jars([JAR], tmp_path, repository_url=mirror.url, on_chunk=refuse)
    assert names_in(tmp_path) == []
