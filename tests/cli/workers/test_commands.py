"""`coterie group`, drains and restarts against what is no group of Coterie's, and what is said when one goes wrong."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import pytest

from coterie.cli.group import client
from coterie.cli.group.shown import ShownGroup, read_group
from coterie.cli.plan import preview
from coterie.cli.workers import commands
from coterie.herder.requests import MemberInfo
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.rest import group_views
from coterie.rest.group_views import UNREACHABLE
from tests.cli.answers import answering, serving
from tests.cli.group import as_json, member, view
from tests.ports import free_port

COMMANDS: dict[str, Callable[[str], None]] = {
    "group": lambda url: commands.show_group(url, as_json=False),
    "group --json": lambda url: commands.show_group(url, as_json=True),
    "drain": lambda url: commands.drain(url, "worker-1"),
    "uncordon": lambda url: commands.uncordon(url, "worker-1"),
    "restart": lambda url: commands.restart_rolling(url, timeout_s=5),
}


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"version": "4.3.1"}', b"[]"])
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_group_is_said_in_words(command: str, body: bytes) -> None:
    with answering(body) as url, pytest.raises(WorldError, match=f"The response of {url}.* is not (a valid|from)"):
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
        commands.check_handed_over(after, last)
    else:
        with pytest.raises(WorldError, match="one ended before its drain was complete; its 2 jobs are those of a lost"):
            commands.check_handed_over(after, last)


# -- a rolling restart ------------------------------------------------------------------------------------------------


class Workers:
    """What workers answer, all at one address; each order to restart is obeyed by `ordered`, at once."""

    def __init__(self, *names: str) -> None:
        self.here: dict[str, int] = dict.fromkeys(names, 0)
        """Each worker's number of lives."""
        self.restarted: list[str] = []
        self.silent = False
        self.url = ""

    def ordered(self, name: str) -> None:
        self.here[name] += 1

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method == "POST":
            name = path.split("/")[3].partition("%3A")[0]
            self.restarted.append(name)
            self.ordered(name)
            return 202, json.dumps({"worker_id": f"{name}:8083", "name": name, "life": "0"}).encode()
        if self.silent:
            return 503, b'{"error_code": 503, "message": "The leader does not answer"}'
        members = self._members()
        words = [
            {"group": {"state": "STABLE", "member_id": one.member_id}, "tasks": [], "life": str(self.here[one.name])}
            for one in members
        ]
        return 200, json.dumps(group_views.group(view(members=members), words)).encode()

    def _members(self) -> tuple[MemberInfo, ...]:
        return tuple(self._at_home(member(name, "")) for name in self.here)

    def _at_home(self, info: MemberInfo) -> MemberInfo:
        return replace(info, url=WorkerUrl(self.url))


@contextmanager
def working(some: Workers) -> Iterator[str]:
    with serving(some.answer) as url:
        some.url = url
        yield url


def test_a_rolling_restart_says_who_there_is_who_restarts_and_takes_the_leader_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    some = Workers("one", "two", "three")
    with working(some) as url:
        commands.restart_rolling(url, timeout_s=5)
    assert some.restarted == ["three", "two", "one"]
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["The group has 3 workers: one, two, three.", "three restarts…"]
    assert said[-1] == "All 3 workers have restarted."


def test_only_those_that_are_named_restart(capsys: pytest.CaptureFixture[str]) -> None:
    some = Workers("one", "two", "three")
    with working(some) as url:
        commands.restart_rolling(url, timeout_s=5, only=("two:8083", "one"))
        assert some.restarted == ["two", "one"]
        assert capsys.readouterr().out.endswith("Restarted: two, one.\n")
        with pytest.raises(WorldError, match="The group has no worker four; it has one, three, two"):
            commands.restart_rolling(url, timeout_s=5, only=("four",))


def test_the_only_worker_of_a_group_restarts_only_when_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    some = Workers("one")
    with working(some) as url:
        with pytest.raises(WorldError, match=r"no other worker than one, .* `coterie workers restart --rolling one`"):
            commands.restart_rolling(url, timeout_s=5)
        assert some.restarted == []
        commands.restart_rolling(url, timeout_s=5, only=("one",))
    assert some.restarted == ["one"]
    assert "one is the only worker of the group: no job runs until it has restarted." in capsys.readouterr().out


def test_nobody_restarts_while_another_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoGoes(Workers):
        def ordered(self, name: str) -> None:
            super().ordered(name)
            self.here.pop("two", None)

    monkeypatch.setattr(commands, "SETTLE_S", 0.3)
    some = TwoGoes("one", "two", "three")
    with (
        working(some) as url,
        pytest.raises(
            WorldError,
            match=r"not stable: two has left the group. Restarted: three. Once .* `.* restart --rolling one two`.",
        ),
    ):
        commands.restart_rolling(url, timeout_s=5)
    assert some.restarted == ["three"]


def test_who_has_gone_when_all_have_restarted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoGoesAtLast(Workers):
        def ordered(self, name: str) -> None:
            super().ordered(name)
            if name == "one":
                del self.here["two"]

    monkeypatch.setattr(commands, "SETTLE_S", 0.3)
    with (
        working(TwoGoesAtLast("one", "two")) as url,
        pytest.raises(WorldError, match=r"not stable: two has left the group. Restarted: two, one.$"),
    ):
        commands.restart_rolling(url, timeout_s=5)


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("is silent", r"The leader does not answer \(HTTP 503 from http://[0-9.:]*\)"),
        ("goes on", "it is still stopping its tasks"),
        ("is out", "it lost its membership and has not joined again"),
    ],
)
def test_a_time_that_is_up_says_whose_it_was_why_and_how_to_go_on(
    fails: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class TwoFails(Workers):
        def ordered(self, name: str) -> None:
            if name == "three":
                super().ordered(name)
            elif fails == "is silent":
                self.silent = True
            elif fails == "is out":
                del self.here[name]

    with (
        working(TwoFails("one", "two", "three")) as url,
        pytest.raises(
            WorldError,
            match=f"two has not restarted with all its jobs within 0.5 s: {why}. Restarted: three. "
            "Once the group is stable, run `coterie workers restart --rolling one`.",
        ),
    ):
        commands.restart_rolling(url, timeout_s=0.5)
    lost = "two took longer than its session.timeout.ms and lost its membership; waiting for it to join again."
    assert (lost in " ".join(capsys.readouterr().out.split())) == (fails == "is out")


class TwoLosesItsPlace(Workers):
    """Two restarts, and is no member at an address where nothing listens until the group was shown a few times."""

    def __init__(self, *names: str, shown_without: float) -> None:
        super().__init__(*names)
        self.left = shown_without
        self.is_away = False

    def ordered(self, name: str) -> None:
        super().ordered(name)
        self.is_away = name == "two"

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method == "GET" and self.is_away:
            self.left -= 1
            self.is_away = self.left > 0
        return super().answer(method, path)

    def _members(self) -> tuple[MemberInfo, ...]:
        here = tuple(one for one in super()._members() if one.name != "two" or not self.is_away)
        if self.here["two"] == 0:
            gone = WorkerUrl(f"http://127.0.0.1:{free_port()}/")
            return tuple(replace(one, url=gone) if one.name == "two" else one for one in here)
        return tuple(replace(one, member_id=MemberId("another")) if one.name == "two" else one for one in here)


def test_a_worker_that_was_away_for_longer_than_its_session_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with working(TwoLosesItsPlace("one", "two", shown_without=4)) as url:
        commands.restart_rolling(url, timeout_s=10, only=("two",))
    said = " ".join(capsys.readouterr().out.split())
    assert "two took longer than its session.timeout.ms and lost its membership" in said
    assert re.search(
        r"two has restarted after [0-9.]+ s and has joined again as a new member; its 0 jobs run again.", said
    )
    assert said.endswith("Restarted: two.")


def test_a_worker_whose_address_stays_silent_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "START_S", 0.3)
    with (
        working(TwoLosesItsPlace("one", "two", shown_without=inf)) as url,
        pytest.raises(WorldError, match=r"two has ended instead of restarting: no process has listened at .* for 0.3"),
    ):
        commands.restart_rolling(url, timeout_s=20, only=("two",))


def test_a_worker_that_could_not_start_again_is_said_and_is_still_to_restart() -> None:
    class TwoRefuses(Workers):
        def answer(self, method: str, path: str) -> tuple[int, bytes]:
            if method == "POST" and "/two%3A" in path:
                return 409, b'{"error_code": 409, "message": "two.properties cannot be read"}'
            return super().answer(method, path)

    with (
        working(TwoRefuses("one", "two", "three")) as url,
        pytest.raises(
            WorldError,
            match=r"^two.properties cannot be read \(HTTP 409 from .*\). Restarted: three. "
            "Once the group is stable, run `coterie workers restart --rolling one two`.",
        ),
    ):
        commands.restart_rolling(url, timeout_s=5)


def test_a_worker_that_is_starting_up_is_named_while_it_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some, asked = Workers("one"), iter(("starts", "reads", "starts", "reads"))

    def answer(method: str, path: str) -> tuple[int, bytes]:
        if (what := next(asked, None)) is None:
            return some.answer(method, path)
        return 503, json.dumps({"error_code": 503, "message": f"Worker {what}."}).encode()

    monkeypatch.setattr(client, "SILENT_S", 0.0)
    with serving(answer) as url:
        some.url = url
        commands.show_group(url, as_json=True)
    said = capsys.readouterr()
    assert said.err == "".join(f"Waiting: Worker {what}. (HTTP 503 from {url})\n" for what in ("starts", "reads"))
    assert json.loads(said.out)["generation"] == 7


@pytest.mark.parametrize("url", ["localhost:8083", "ftp://localhost:8083", "http://localhost:port"])
def test_what_is_no_url_is_said_to_be_none(url: str) -> None:
    with pytest.raises(WorldError, match=f"^{url} is not the URL of a worker: use --url http://HOST:PORT"):
        commands.show_group(url, as_json=True)


def test_a_plan_waits_for_the_group_as_the_other_commands_do(capsys: pytest.CaptureFixture[str]) -> None:
    some, asked = Workers("one"), iter(range(2))

    def answer(method: str, path: str) -> tuple[int, bytes]:
        some.silent = next(asked, None) is not None
        return some.answer(method, path)

    with serving(answer) as url:
        some.url = url
        preview.show(preview.PlanOptions(), url=url, file=None, as_json=False)
    assert "5 jobs would be stopped; 1 round." in capsys.readouterr().out
