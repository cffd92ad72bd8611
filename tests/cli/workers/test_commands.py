"""`coterie group`, drains and restarts: responses that are not a group, and the errors of failed commands."""

import functools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from coterie.cli.group import client
from coterie.cli.group.descriptions import GroupDescription, parse_group_description
from coterie.cli.options import RestLogin
from coterie.cli.plan import preview
from coterie.cli.workers import commands
from coterie.herder.requests.views import MemberInfo
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.rest import group_views
from coterie.rest.group_views import UNREACHABLE
from tests.certificates import Authority
from tests.cli.answers import answering, http_server, http_server_with_login
from tests.cli.group import as_json, member, view
from tests.ports import free_port

COMMANDS: dict[str, Callable[[str], None]] = {
    "group": lambda url: commands.show_group(url, as_json=False),
    "group --json": lambda url: commands.show_group(url, as_json=True),
    "drain": lambda url: commands.drain_worker_and_wait(url, "worker-1"),
    "uncordon": lambda url: commands.cancel_drain(url, "worker-1"),
    "restart": lambda url: commands.restart_workers_rolling(url, timeout_s=5),
}


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"version": "4.3.1"}', b"[]"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_response_that_is_not_a_group_is_refused_with_a_message(command: str, body: bytes) -> None:
    with answering(body) as url, pytest.raises(WorldError, match=f"The response of {url}.* is not (a valid|from)"):
        COMMANDS[command](url)


def group_of(owned: str, *, state: str, jobs_of_two: str = "") -> GroupDescription:
    shown = parse_group_description(
        as_json(view(members=(member("one", owned), member("two", jobs_of_two)))), source="it"
    )
    info, two = shown.members
    return shown.model_copy(update={"members": (info.model_copy(update={"state": state}), two)})


@pytest.mark.parametrize(
    ("owned", "state", "jobs_of_two", "is_complete"),
    [
        ("", "STABLE", "AC0", True),
        ("", UNREACHABLE, "AC0", True),
        ("AC0 AT0", "STABLE", "AC0 AT0", True),
        ("AC0 AT0", "STABLE", "AC0", False),
        ("AC0 AT0", UNREACHABLE, "AC0 AT0", False),
    ],
)
def test_a_worker_that_ends_during_its_drain_has_not_handed_over_its_jobs(
    owned: str, state: str, jobs_of_two: str, is_complete: bool
) -> None:
    last = group_of(owned, state=state).members[0]
    after = group_of("", state="STABLE", jobs_of_two=jobs_of_two)
    if is_complete:
        commands.raise_unless_jobs_handed_over(after, last)
    else:
        with pytest.raises(WorldError, match="one ended before its drain was complete; its 2 jobs are treated as"):
            commands.raise_unless_jobs_handed_over(after, last)


def test_jobs_that_other_workers_are_about_to_start_are_on_their_way() -> None:
    last = group_of("AC0 AT0", state="STABLE").members[0]
    after = group_of("", state="STABLE", jobs_of_two="AC0")
    assert list(map(str, commands.jobs_about_to_be_taken_over(after, last))) == ["A-0"]
    assert not commands.jobs_about_to_be_taken_over(group_of("", state="STABLE", jobs_of_two="AC0 AT0"), last)


# -- a drain ----------------------------------------------------------------------------------------------------------


class SoleWorker:
    """A group with the only worker "one", which runs the jobs ``owned`` and begins to drain at an order. From the
    second view after the order, its process has ended."""

    def __init__(self, owned: str, *, configured: str = "AC0 AT0", views_until_end: float = 2) -> None:
        self.owned = owned
        self.configured = configured
        self.is_draining = False
        self.views_left = views_until_end
        self.old_url = WorkerUrl("")

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method != "GET":
            self.is_draining = method == "POST"
            return 202, json.dumps({"worker_id": "one:8083", "name": "one", "life": "0"}).encode()
        if self.is_draining:
            self.views_left -= 1
            if self.views_left < 0:
                return 503, b'{"error_code": 503, "message": "Worker is shutting down"}'
        info = replace(
            member("one", self.owned),
            url=self.old_url,
            draining=self.is_draining,
            drain_wait_reason="every worker is draining" if self.is_draining and self.owned else None,
        )
        own_view = {"group": {"state": "STABLE"}, "draining": self.is_draining, "tasks": [], "life": "0"}
        shown = view(members=(info,), configured=parse_jobs(self.configured))
        return 200, json.dumps(group_views.group_json(shown, [own_view])).encode()


@contextmanager
def serve_sole_worker(worker: SoleWorker) -> Iterator[str]:
    worker.old_url = WorkerUrl(f"http://127.0.0.1:{free_port()}/")
    with http_server(worker.answer) as url:
        yield url


@pytest.mark.parametrize(
    ("configured", "printed"),
    [
        ("", "one has ended. It was the only worker of the group."),
        (
            "AC0 AT0",
            "one has ended. It was the only worker of the group: the group's 2 jobs run on no worker until a worker "
            "starts.",
        ),
    ],
)
def test_the_drain_of_the_only_worker_succeeds_at_once_when_its_process_has_ended(
    configured: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_sole_worker(SoleWorker("", configured=configured)) as url:
        began_at_s = time.monotonic()
        commands.drain_worker_and_wait(url, "one")
    assert time.monotonic() - began_at_s < client.LEADER_TIMEOUT_S / 2
    output = capsys.readouterr()
    assert output.out.splitlines() == ["one is draining: 0 jobs left", printed]
    assert output.err == ""


def test_the_drain_of_the_only_worker_shows_what_to_do_and_fails_if_the_worker_ends_with_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        serve_sole_worker(SoleWorker("AC0 AT0")) as url,
        pytest.raises(
            WorldError,
            match=r"^one ended before its drain was complete\. It was the only worker of the group: no worker runs its "
            r"2 jobs until a worker starts\.$",
        ),
    ):
        commands.drain_worker_and_wait(url, "one")
    assert capsys.readouterr().out.splitlines() == [
        "one is draining: 2 jobs left; the drain waits: every worker is draining. Start another worker, which then "
        "gets the jobs, or cancel the drain: `coterie worker drain --uncordon one`"
    ]


def test_a_cancelled_drain_is_reported_only_if_the_worker_was_draining(capsys: pytest.CaptureFixture[str]) -> None:
    worker = SoleWorker("AC0 AT0", views_until_end=inf)
    with serve_sole_worker(worker) as url:
        commands.cancel_drain(url, "one")
        worker.is_draining = True
        commands.cancel_drain(url, "one")
    assert capsys.readouterr().out.splitlines() == [
        "one was not draining: the worker stays and accepts jobs, as before.",
        "The drain of one is cancelled: the worker stays and accepts jobs again.",
    ]


# -- a rolling restart ------------------------------------------------------------------------------------------------


class FakeWorkers:
    """A group of fake workers behind one address; `restart` executes each order to restart at once."""

    def __init__(self, *names: str) -> None:
        self.present: dict[str, int] = dict.fromkeys(names, 0)
        """The number of restarts of each present worker."""
        self.restarted: list[str] = []
        self.is_unavailable = False
        self.url = ""

    def restart(self, name: str) -> None:
        self.present[name] += 1

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method == "POST":
            name = path.split("/")[3].partition("%3A")[0]
            self.restarted.append(name)
            self.restart(name)
            return 202, json.dumps({"worker_id": f"{name}:8083", "name": name, "life": "0"}).encode()
        if self.is_unavailable:
            return 503, b'{"error_code": 503, "message": "The leader does not answer"}'
        members = self._members()
        words = [
            {
                "group": {"state": "STABLE", "member_id": info.member_id},
                "tasks": [],
                "life": str(self.present[info.name]),
            }
            for info in members
        ]
        return 200, json.dumps(group_views.group_json(view(members=members), words)).encode()

    def _members(self) -> tuple[MemberInfo, ...]:
        return tuple(self._with_url(member(name, "")) for name in self.present)

    def _with_url(self, info: MemberInfo) -> MemberInfo:
        return replace(info, url=WorkerUrl(self.url))


@contextmanager
def serve_workers(workers: FakeWorkers) -> Iterator[str]:
    with http_server(workers.answer) as url:
        workers.url = url
        yield url


def test_a_rolling_restart_prints_its_workers_and_restarts_the_leader_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workers = FakeWorkers("one", "two", "three")
    with serve_workers(workers) as url:
        commands.restart_workers_rolling(url, timeout_s=5)
    assert workers.restarted == ["three", "two", "one"]
    output = capsys.readouterr().out.splitlines()
    assert output[:2] == ["The group has 3 workers: one, two, three.", "three restarts…"]
    assert output[-1] == "All 3 workers have restarted."


def test_only_the_named_workers_restart(capsys: pytest.CaptureFixture[str]) -> None:
    workers = FakeWorkers("one", "two", "three")
    with serve_workers(workers) as url:
        commands.restart_workers_rolling(url, timeout_s=5, only_workers=("two:8083", "one"))
        assert workers.restarted == ["two", "one"]
        assert capsys.readouterr().out.endswith("Restarted: two, one.\n")
        with pytest.raises(WorldError, match="The group has no worker four; it has one, three, two"):
            commands.restart_workers_rolling(url, timeout_s=5, only_workers=("four",))


def test_the_only_worker_of_a_group_restarts_only_if_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    workers = FakeWorkers("one")
    with serve_workers(workers) as url:
        with pytest.raises(WorldError, match=r"no other worker than one, .* `coterie workers restart --rolling one`"):
            commands.restart_workers_rolling(url, timeout_s=5)
        assert workers.restarted == []
        commands.restart_workers_rolling(url, timeout_s=5, only_workers=("one",))
    assert workers.restarted == ["one"]
    assert "one is the only worker of the group: no job runs until it has restarted." in capsys.readouterr().out


def test_a_restart_that_moves_jobs_shows_what_it_waits_for_and_ends_when_it_is_cancelled() -> None:
    class BertMoves(FakeWorkers):
        is_draining = True

        def restart(self, name: str) -> None:
            pass

        def answer(self, method: str, path: str) -> tuple[int, bytes]:
            if method == "POST":
                assert path.endswith("/restart?moveJobs=true")
            status, body = super().answer(method, path)
            description = json.loads(body)
            for described in description.get("members", ()):
                described["draining"] = described["name"] == "bert" and bool(self.restarted) and self.is_draining
            return status, json.dumps(description).encode()

    workers = BertMoves("anna", "bert")
    with serve_workers(workers) as url:
        with pytest.raises(WorldError) as raised:
            commands.restart_workers_rolling(url, timeout_s=1, only_workers=("bert",), moves_jobs=True)
        assert str(raised.value) == (
            "bert has not restarted within 1 s: it is moving its jobs, 0 jobs left; to cancel the restart, run "
            "`coterie worker drain --uncordon bert`. No worker has restarted."
        )
        workers.restarted.clear()
        workers.is_draining = False
        with pytest.raises(WorldError, match="The restart of bert was cancelled: it stays, and accepts jobs again"):
            commands.restart_workers_rolling(url, timeout_s=5, only_workers=("bert",), moves_jobs=True)


def test_no_worker_restarts_while_another_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoLeaves(FakeWorkers):
        def restart(self, name: str) -> None:
            super().restart(name)
            self.present.pop("two", None)

    monkeypatch.setattr(commands, "STABLE_TIMEOUT_S", 0.3)
    workers = TwoLeaves("one", "two", "three")
    with (
        serve_workers(workers) as url,
        pytest.raises(
            WorldError,
            match=r"not stable: two has left the group. Restarted: three. Once .* `.* restart --rolling one two`.",
        ),
    ):
        commands.restart_workers_rolling(url, timeout_s=5)
    assert workers.restarted == ["three"]


def test_a_worker_that_is_missing_after_all_restarts_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoLeavesAtTheEnd(FakeWorkers):
        def restart(self, name: str) -> None:
            super().restart(name)
            if name == "one":
                del self.present["two"]

    monkeypatch.setattr(commands, "STABLE_TIMEOUT_S", 0.3)
    with (
        serve_workers(TwoLeavesAtTheEnd("one", "two")) as url,
        pytest.raises(WorldError, match=r"not stable: two has left the group. Restarted: two, one.$"),
    ):
        commands.restart_workers_rolling(url, timeout_s=5)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("unavailable", r"The leader does not answer \(HTTP 503 from http://[0-9.:]*\)"),
        ("still running", "it is still stopping its tasks"),
        ("left the group", "it lost its membership and has not joined again"),
    ],
)
def test_a_timeout_is_reported_with_the_worker_the_reason_and_the_command_to_continue(
    failure: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class TwoFails(FakeWorkers):
        def restart(self, name: str) -> None:
            if name == "three":
                super().restart(name)
            elif failure == "unavailable":
                self.is_unavailable = True
            elif failure == "left the group":
                del self.present[name]

    with (
        serve_workers(TwoFails("one", "two", "three")) as url,
        pytest.raises(
            WorldError,
            match=f"two has not restarted with all its jobs within 0.5 s: {reason}. Restarted: three. "
            "Once the group is stable, run `coterie workers restart --rolling one`.",
        ),
    ):
        commands.restart_workers_rolling(url, timeout_s=0.5)
    lost = "two took longer than its session timeout and lost its membership; waiting for it to join again."
    assert (lost in " ".join(capsys.readouterr().out.split())) == (failure == "left the group")


class TwoLosesItsMembership(FakeWorkers):
    """The worker "two" restarts, and is missing in the next ``views_without_two`` views of the group; its old address
    refuses connections."""

    def __init__(self, *names: str, views_without_two: float) -> None:
        super().__init__(*names)
        self.remaining_views = views_without_two
        self.old_url_of_two = WorkerUrl(f"http://127.0.0.1:{free_port()}/")
        self.is_unreachable = False

    def restart(self, name: str) -> None:
        super().restart(name)
        self.is_unreachable = name == "two"

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method == "GET" and self.is_unreachable:
            self.remaining_views -= 1
            self.is_unreachable = self.remaining_views > 0
        return super().answer(method, path)

    def _members(self) -> tuple[MemberInfo, ...]:
        present = tuple(info for info in super()._members() if info.name != "two" or not self.is_unreachable)
        if self.present["two"] == 0:
            return tuple(replace(info, url=self.old_url_of_two) if info.name == "two" else info for info in present)
        return tuple(replace(info, member_id=MemberId("another")) if info.name == "two" else info for info in present)


def test_a_restart_waits_for_a_worker_that_lost_its_membership(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_workers(TwoLosesItsMembership("one", "two", views_without_two=4)) as url:
        commands.restart_workers_rolling(url, timeout_s=10, only_workers=("two",))
    output = " ".join(capsys.readouterr().out.split())
    assert "two took longer than its session timeout and lost its membership" in output
    assert re.search(
        r"two has restarted after [0-9.]+ s and has joined again as a new member; its 0 jobs run again.", output
    )
    assert output.endswith("Restarted: two.")


def test_a_worker_whose_address_stays_unreachable_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "REFUSED_CONNECTIONS_TIMEOUT_S", 0.3)
    with (
        serve_workers(TwoLosesItsMembership("one", "two", views_without_two=inf)) as url,
        pytest.raises(WorldError, match=r"two has ended instead of restarting: no process has listened at .* for 0.3"),
    ):
        commands.restart_workers_rolling(url, timeout_s=20, only_workers=("two",))


@pytest.mark.parametrize(
    "command",
    [
        lambda url: commands.drain_worker_and_wait(url, "two:8083"),
        lambda url: commands.restart_workers_rolling(url, timeout_s=20, only_workers=("two",)),
    ],
)
def test_a_worker_whose_certificate_is_not_trusted_has_not_ended(
    command: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "REFUSED_CONNECTIONS_TIMEOUT_S", 0.3)
    workers = TwoLosesItsMembership("one", "two", views_without_two=inf)
    with serve_workers(workers) as url, http_server(workers.answer, Authority(tmp_path).pair("two")) as url_of_two:
        workers.old_url_of_two = WorkerUrl(f"{url_of_two}/")
        with pytest.raises(WorldError, match=f"a process still listens at {url_of_two}/ is not known: .*--ca"):
            command(url)
    assert "ended" not in capsys.readouterr().out


# -- an order whose response is lost ----------------------------------------------------------------------------------


class WorkersOfOneOrder:
    """A group of the two workers "one" and "two", which respond to an order with ``status``, or break the connection
    after they have received the order."""

    def __init__(self, status: int | None) -> None:
        self.orders: list[str] = []
        """The worker that has received each order."""
        self.urls: dict[str, str] = {}
        self._status = status

    def answer(self, name: str, method: str, path: str) -> tuple[int, bytes]:
        if method == "GET":
            members = tuple(replace(member(one, ""), url=WorkerUrl(url)) for one, url in self.urls.items())
            return 200, json.dumps(group_views.group_json(view(members=members), [None, None])).encode()
        self.orders.append(name)
        if self._status is None:
            raise ConnectionAbortedError
        return self._status, json.dumps({"error_code": self._status, "message": "no response came"}).encode()


@pytest.mark.parametrize(
    ("status", "orders", "message"),
    [
        (
            None,
            ["one"],
            "No response came from {one} after the order was sent (Server disconnected without sending a "
            "response.): the order may have been accepted. `coterie group` shows the state of the workers",
        ),
        (500, ["one"], "no response came (HTTP 500 from {one})"),
        (502, ["one"], "no response came (HTTP 502 from {one})"),
        (503, ["one", "two"], "no response came (HTTP 503 from {two})"),
    ],
)
def test_an_order_that_may_have_been_accepted_is_not_sent_again(
    status: int | None, orders: list[str], message: str
) -> None:
    workers = WorkersOfOneOrder(status)
    with (
        http_server(functools.partial(workers.answer, "one")) as workers.urls["one"],
        http_server(functools.partial(workers.answer, "two")) as workers.urls["two"],
        client.GroupRestClient(workers.urls["one"]) as group,
    ):
        group.describe_group()
        with pytest.raises(WorldError) as raised:
            group.send_order("POST", "two:8083", "restart")
    assert workers.orders == orders
    assert str(raised.value) == message.format(**workers.urls)


# -- the log-in -------------------------------------------------------------------------------------------------------


class HttpMembers:
    """A group whose only worker advertises http: it records the path and the header Authorization of each request that
    it receives at an https and at an http URL, and needs a log-in at both."""

    def __init__(self) -> None:
        self.http_url = ""
        self.is_unavailable_at_https = False
        self.received: list[tuple[str, str, str | None]] = []

    def answer(self, scheme: str, method: str, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.received.append((scheme, path, authorization))
        if authorization is None:
            return 401, b"User cannot access the resource."
        if self.is_unavailable_at_https and scheme == "https":
            return 503, b'{"error_code": 503, "message": "no leader"}'
        shown = view(members=(replace(member("one", ""), url=WorkerUrl(self.http_url)),))
        return 200, json.dumps(group_views.group_json(shown, [None])).encode()


@contextmanager
def serve_http_members(members: HttpMembers, authority: Authority) -> Iterator[str]:
    """The https URL of the worker of ``members``."""
    with (
        http_server_with_login(functools.partial(members.answer, "http")) as members.http_url,
        http_server_with_login(functools.partial(members.answer, "https"), authority.pair("one")) as https_url,
    ):
        yield https_url


def log_in(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> None:
    login = RestLogin(user="alice", password="secret", ca_file=authority.certificate)
    monkeypatch.setattr("coterie.cli.rest_request.current_rest_login", lambda: login)


def test_the_log_in_is_not_sent_to_an_http_url_if_the_given_url_is_https(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, members = Authority(tmp_path), HttpMembers()
    log_in(monkeypatch, authority)
    with serve_http_members(members, authority) as url, client.GroupRestClient(url) as group:
        group.describe_group()
        members.is_unavailable_at_https = True
        for _ in range(2):
            with pytest.raises(WorldError, match=rf"^no leader \(HTTP 503 from {url}\)$"):
                group.describe_group(timeout_s=0)
        members.is_unavailable_at_https = False
        assert group.describe_group().members[0].name == "one", "the worker at the https URL is asked first again"
    assert {(scheme, authorization is not None) for scheme, _, authorization in members.received} == {
        ("https", True),
        ("http", False),
    }
    assert capsys.readouterr().err == (
        f"The log-in is not sent to {members.http_url}, because that URL is not encrypted and {url} is: set "
        "rest.advertised.listener=https on that worker.\n"
    )


def test_the_log_in_is_sent_to_an_http_url_if_the_given_url_is_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, members = Authority(tmp_path), HttpMembers()
    log_in(monkeypatch, authority)
    with serve_http_members(members, authority), client.GroupRestClient(members.http_url) as group:
        group.describe_group()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_https_given", [True, False])
def test_whether_a_worker_listens_is_asked_without_a_log_in(
    is_https_given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, members = Authority(tmp_path), HttpMembers()
    log_in(monkeypatch, authority)
    with (
        serve_http_members(members, authority) as https_url,
        client.GroupRestClient(https_url if is_https_given else members.http_url) as group,
    ):
        assert not group.refuses_connections(members.http_url)
    assert members.received == [("http", "/health", None)]


# -- whether a worker has ended ---------------------------------------------------------------------------------------


def refuses_connections(url: str) -> bool:
    with client.GroupRestClient(url) as group:
        return group.refuses_connections(url)


@pytest.mark.parametrize(("name", "segment"), [("..", "%2E%2E"), (".", "%2E"), ("a/b", "a%2Fb")])
def test_a_name_of_dots_or_with_a_slash_is_one_segment_of_the_path(name: str, segment: str) -> None:
    paths: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes]:
        paths.append(path)
        return 200, b"{}" if method == "GET" else json.dumps({"worker_id": "a:1", "name": "a", "life": "0"}).encode()

    with http_server(answer) as url, client.GroupRestClient(url) as group:
        group.connector_config(ConnectorName(name))
        group.send_order("POST", name, "drain")
    assert paths == [f"/connectors/{segment}/config", f"/coterie/workers/{segment}/drain"]


def test_an_address_refuses_connections_only_if_no_process_listens_there() -> None:
    assert refuses_connections(f"http://127.0.0.1:{free_port()}")
    with answering(b"{}") as url:
        assert not refuses_connections(url)


def test_a_process_that_closes_a_tls_connection_still_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_next_connection() -> None:
            connection, _ = server.accept()
            connection.close()

        thread = threading.Thread(target=close_next_connection)
        thread.start()
        assert not refuses_connections(f"https://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    ("code", "is_refused"),
    [
        (socket.EAI_NONAME, True),
        (socket.EAI_AGAIN, False),
    ],
)
def test_a_host_whose_name_has_no_address_refuses_connections(
    code: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise socket.gaierror(code, "the name server's answer")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert refuses_connections("http://worker-1.invalid:8083") == is_refused


def test_a_worker_that_refuses_to_restart_is_reported_and_remains_in_the_command_to_continue() -> None:
    class TwoRefuses(FakeWorkers):
        def answer(self, method: str, path: str) -> tuple[int, bytes]:
            if method == "POST" and "/two%3A" in path:
                return 409, b'{"error_code": 409, "message": "two.properties cannot be read"}'
            return super().answer(method, path)

    with (
        serve_workers(TwoRefuses("one", "two", "three")) as url,
        pytest.raises(
            WorldError,
            match=r"^two.properties cannot be read \(HTTP 409 from .*\). Restarted: three. "
            "Once the group is stable, run `coterie workers restart --rolling one two`.",
        ),
    ):
        commands.restart_workers_rolling(url, timeout_s=5)


def test_a_starting_worker_is_reported_while_the_command_waits_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, pending_messages = FakeWorkers("one"), iter(("starts", "reads", "starts", "reads"))

    def answer(method: str, path: str) -> tuple[int, bytes]:
        if (what := next(pending_messages, None)) is None:
            return workers.answer(method, path)
        return 503, json.dumps({"error_code": 503, "message": f"Worker {what}."}).encode()

    monkeypatch.setattr(client, "WAIT_MESSAGE_AFTER_S", 0.0)
    with http_server(answer) as url:
        workers.url = url
        commands.show_group(url, as_json=True)
    output = capsys.readouterr()
    assert output.err == "".join(f"Waiting: Worker {what}. (HTTP 503 from {url})\n" for what in ("starts", "reads"))
    assert json.loads(output.out)["generation"] == 7


@pytest.mark.parametrize("url", ["localhost:8083", "ftp://localhost:8083", "http://localhost:port"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(WorldError, match=f"^{url} is not the URL of a worker: use --url http://HOST:PORT"):
        commands.show_group(url, as_json=True)


def test_a_plan_waits_for_the_group_like_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    workers, pending_messages = FakeWorkers("one"), iter(range(2))

    def answer(method: str, path: str) -> tuple[int, bytes]:
        workers.is_unavailable = next(pending_messages, None) is not None
        return workers.answer(method, path)

    with http_server(answer) as url:
        workers.url = url
        preview.show_plan(preview.ChangeOptions(), url=url, file=None, as_json=False)
    assert "5 jobs would be stopped; 1 round." in capsys.readouterr().out
