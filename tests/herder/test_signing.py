"""Session keys in a herder's hands: who writes one and when, what is signed, what is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfig,
    ConfigAppended,
    ConfigAppendFailed,
    ConnectorSplit,
    MakeSessionKey,
    PublishTaskConfigs,
    Say,
    SessionKeyMade,
    SetTimer,
    SplitConnector,
    TaskConfigsPublished,
    TimerFired,
)
from coterie.herder.requests import Done, Problem, PutTaskConfigs, RequestRefused
from coterie.herder.session_keys import SessionKey, SessionKeySettings, Signature, Signing
from coterie.herder.timers import RetryDue
from coterie.nouns.ids import ConfigOffset, Incarnation
from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.wire.connect import ConnectProtocol
from tests.herder.by_hand import ME, ROUND, WALL_MS, ByHand

HOUR_MS = 3_600_000
ORDERS = ConnectorName("orders")
BORN = config_records.connector_line(ORDERS, {"connector.class": "X", "name": "orders"}, Incarnation("life"))
CONFIGS = ({"share": "0/1"},)
BODY = b'[{"share": "0/1"}]'
SIGNING = [ConnectProtocol.SESSIONED, ConnectProtocol.STATIC]
SILENT = [ConnectProtocol.EAGER, ConnectProtocol.COMPATIBLE]


def key_of(letter: bytes, *, created_at_ms: int = WALL_MS, algorithm: str = "HmacSHA256", size: int = 32) -> SessionKey:
    return SessionKey(key=letter * size, algorithm=algorithm, created_at_ms=created_at_ms)


def a_herder(*, key: SessionKey | None = None, **session_keys: Any) -> ByHand:
    """Begun at ``WALL_MS``, in a log that may hold a key already."""
    herder = ByHand()
    herder.herder.settings = replace(herder.herder.settings, session_keys=SessionKeySettings(**session_keys))
    herder.write(BORN, *(() if key is None else (config_records.session_key_line(key),)))
    herder.begin()
    return herder


def a_leader(
    protocol: ConnectProtocol = ConnectProtocol.SESSIONED, *, key: SessionKey | None = None, **session_keys: Any
) -> ByHand:
    herder = a_herder(key=key, **session_keys)
    herder.assign(leader=ME, protocol=protocol)
    return herder


def written(herder: ByHand) -> dict[str, Any]:
    """The value of the line that is last in the config log, once it is one of a session key."""
    assert herder.config[-1].key == b"session-key"
    assert herder.config[-1].value is not None
    value: dict[str, Any] = json.loads(herder.config[-1].value)
    return value


def pass_time(herder: ByHand, ms: int) -> None:
    """With all timers of the session key that fall into it."""
    end_ms = herder.now_ms + ms
    while timers := [one for one in herder.take(SetTimer) if one.timer == "session key"]:
        if timers[-1].at_ms > end_ms:
            herder.orders.append(timers[-1])
            break
        herder.now_ms = max(herder.now_ms, timers[-1].at_ms)
        herder.tell(TimerFired(timer="session key"))
    herder.now_ms = end_ms


# -- who writes one, and when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", SIGNING)
def test_a_leader_without_a_key_writes_one(protocol: ConnectProtocol) -> None:
    herder = a_leader(protocol)
    assert herder.take(MakeSessionKey) == [MakeSessionKey(size_bytes=32)]
    herder.now_ms += 5
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms, key=b"k" * 32))
    (append,) = herder.take(AppendConfig)
    assert append.lines == (config_records.session_key_line(key_of(b"k", created_at_ms=WALL_MS + 5)),)
    assert herder.herder.config.session_key is None, "it counts when it is read"
    herder.write(*append.lines)
    herder.tell(ConfigAppended(purpose=append.purpose, end=ConfigOffset(2)))
    assert herder.herder.config.session_key == key_of(b"k", created_at_ms=WALL_MS + 5)
    assert not herder.take(MakeSessionKey)


@pytest.mark.parametrize("protocol", SILENT)
def test_an_older_protocol_has_no_keys(protocol: ConnectProtocol) -> None:
    assert not a_leader(protocol).take(MakeSessionKey)


def test_a_follower_writes_none_however_old_the_key() -> None:
    herder = a_herder(key=key_of(b"k", created_at_ms=WALL_MS - 2 * HOUR_MS))
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    assert not herder.take(MakeSessionKey)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.take(MakeSessionKey), "now it leads"


def test_a_key_is_used_until_it_is_as_old_as_is_set_also_by_another_leader() -> None:
    # Another leader made it, on another steady clock: what counts is the wall's time in the line.
    herder = a_leader(key=key_of(b"k", created_at_ms=WALL_MS - HOUR_MS + 60_000))
    pass_time(herder, 59_999)
    assert not herder.take(MakeSessionKey)
    pass_time(herder, 1)
    herder.obey()
    assert written(herder)["creation-timestamp"] == WALL_MS + 60_000
    pass_time(herder, HOUR_MS - 1)
    assert not herder.take(MakeSessionKey)
    pass_time(herder, 1)
    assert herder.take(MakeSessionKey)


def test_a_key_that_is_dated_ahead_is_used_no_longer_than_one_that_is_fresh() -> None:
    # Another leader's clock was ahead when it made the key, or this one's was behind when it began.
    herder = a_leader(key=key_of(b"k", created_at_ms=WALL_MS + 8_760 * HOUR_MS))
    pass_time(herder, HOUR_MS - 1)
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert not herder.take(MakeSessionKey)
    pass_time(herder, 1)
    herder.obey()
    assert written(herder)["creation-timestamp"] == WALL_MS + HOUR_MS
    herder.write(config_records.session_key_line(key_of(b"l", created_at_ms=WALL_MS + 8_760 * HOUR_MS)))
    pass_time(herder, HOUR_MS - 1)
    assert not herder.take(MakeSessionKey)
    pass_time(herder, 1)
    assert herder.take(MakeSessionKey), "each counts for itself"


def test_without_an_end_a_key_is_used_for_ever() -> None:
    herder = a_leader(key=key_of(b"k", created_at_ms=0), ttl_ms=0)
    pass_time(herder, 1_000 * HOUR_MS)
    assert not herder.take(MakeSessionKey)


@pytest.mark.parametrize("other", [key_of(b"k", algorithm="HmacSHA1"), key_of(b"k", size=31), key_of(b"k", size=64)])
def test_a_key_that_is_not_as_set_is_replaced_at_once(other: SessionKey) -> None:
    herder = a_leader(key=other)
    herder.obey()
    assert herder.herder.config.session_key is not None
    assert (herder.herder.config.session_key.algorithm, len(herder.herder.config.session_key.key)) == (
        "HmacSHA256",
        32,
    )
    assert not herder.chores()


def test_a_clock_that_is_set_while_a_worker_runs_dates_its_next_key() -> None:
    herder = a_leader(key=key_of(b"k", created_at_ms=WALL_MS - 3_600_000))
    assert herder.take(MakeSessionKey)
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms + 7_000_000, key=b"l" * 32))
    (append,) = herder.take(AppendConfig)
    assert append.lines == (config_records.session_key_line(key_of(b"l", created_at_ms=herder.wall_ms + 7_000_000)),)
    herder.write(*append.lines)
    herder.tell(ConfigAppended(purpose=append.purpose, end=ConfigOffset(len(herder.config))))
    pass_time(herder, 3_599_000)
    assert not herder.take(MakeSessionKey)
    pass_time(herder, 2_000)
    assert len(herder.take(MakeSessionKey)) == 1, "an hour later, by the clock that was set"


def test_a_clock_that_was_set_back_leaves_a_key_that_is_not_old() -> None:
    herder = a_leader(key=key_of(b"k", created_at_ms=WALL_MS - 3_600_000))
    assert herder.take(MakeSessionKey)
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms - 600_000, key=b"l" * 32))
    assert not herder.take(AppendConfig)
    pass_time(herder, 601_000)
    assert len(herder.take(MakeSessionKey)) == 1


def test_a_write_that_failed_is_tried_again_and_one_that_did_not_after_all_is_not() -> None:
    herder = a_leader()
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms, key=b"k" * 32))
    herder.take(MakeSessionKey)
    (append,) = herder.take(AppendConfig)
    herder.tell(ConfigAppendFailed(purpose=append.purpose, reason="no route"))
    assert any("no route" in said.text for said in herder.take(Say))
    assert not herder.take(MakeSessionKey), "not at once"
    pass_time(herder, 1_000)
    assert herder.take(MakeSessionKey) == [MakeSessionKey(size_bytes=32)]
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms, key=b"l" * 32))
    (append,) = herder.take(AppendConfig)
    herder.write(*append.lines)
    herder.tell(ConfigAppendFailed(purpose=append.purpose, reason="no answer"))
    pass_time(herder, 1_000)
    assert not herder.take(MakeSessionKey), "the line is there"


def test_whoever_leads_no_more_when_its_key_is_made_writes_none() -> None:
    herder = a_leader()
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms, key=b"k" * 32))
    assert not herder.take(AppendConfig)
    herder.take(MakeSessionKey)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.take(MakeSessionKey), "and asks anew when it leads again"


def test_one_key_is_written_at_a_time_however_late_its_line_comes_back() -> None:
    herder = a_leader(key=key_of(b"k", created_at_ms=0))
    assert len(herder.take(MakeSessionKey)) == 1
    herder.tell(SessionKeyMade(wall_ms=herder.wall_ms, key=b"l" * 32))
    (append,) = herder.take(AppendConfig)
    herder.write(*append.lines, read=False)
    herder.tell(ConfigAppended(purpose=append.purpose, end=ConfigOffset(3)))
    herder.tell(TimerFired(timer="session key"))
    assert not herder.take(MakeSessionKey)


def test_nothing_that_is_traced_shows_a_key() -> None:
    herder = a_leader()
    event = SessionKeyMade(wall_ms=herder.wall_ms, key=b"secretsecretsecretsecretsecretse")
    herder.tell(event)
    shown = f"{event} {herder.orders}"
    assert "secret" not in shown
    assert "c2VjcmV0" not in shown, "nor in base64"


# -- what is signed ---------------------------------------------------------------------------------------------------


def an_owner(protocol: ConnectProtocol, *, key: SessionKey | None) -> ByHand:
    """A follower that has split its connector."""
    herder = a_herder(key=key)
    herder.assign(assigned=Jobs.of([ORDERS]), protocol=protocol)
    (split,) = herder.take(SplitConnector)
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=split.written_at, configs=CONFIGS))
    return herder


@pytest.mark.parametrize("protocol", SIGNING)
def test_a_follower_signs_with_the_key_that_it_knows_then(protocol: ConnectProtocol) -> None:
    herder = an_owner(protocol, key=None)
    assert not herder.take(PublishTaskConfigs), "there is nothing yet to sign with"
    herder.write(config_records.session_key_line(key_of(b"k")))
    (published,) = herder.take(PublishTaskConfigs)
    assert published.signing == Signing(key=b"k" * 32, algorithm="HmacSHA256")


@pytest.mark.parametrize("protocol", SILENT)
def test_in_an_older_protocol_nothing_is_signed_though_there_be_a_key(protocol: ConnectProtocol) -> None:
    (published,) = an_owner(protocol, key=key_of(b"k")).take(PublishTaskConfigs)
    assert published.signing is None


def test_a_signature_refused_soon_after_the_first_attempt_is_a_quiet_race_and_later_an_error() -> None:
    herder = an_owner(ConnectProtocol.SESSIONED, key=key_of(b"k"))
    herder.take(PublishTaskConfigs)
    first_ms, keys = herder.now_ms, iter(b"lmnopqrstuvw")
    quiet: list[list[bool]] = []
    loud: list[list[bool]] = []
    for _ in range(9):
        herder.take(Say)
        herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=0, refusal="403", forbidden=True))
        (quiet if herder.now_ms <= first_ms + 60_000 else loud).append([said.is_error for said in herder.take(Say)])
        (retry,) = [timer for timer in herder.take(SetTimer) if isinstance(timer.timer, RetryDue)]
        newer = bytes([next(keys)])
        herder.write(config_records.session_key_line(key_of(newer)))
        herder.now_ms = retry.at_ms
        herder.tell(TimerFired(timer=retry.timer))
        (published,) = herder.take(PublishTaskConfigs)
        assert published.signing is not None
        assert published.signing.key == newer * 32, "the key that is known now"
    assert quiet == [[]] * 8
    assert loud == [[True]]


def test_another_refusal_is_told_as_ever() -> None:
    herder = an_owner(ConnectProtocol.SESSIONED, key=key_of(b"k"))
    herder.take(Say)
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=0, refusal="no route"))
    assert [said.is_error for said in herder.take(Say)] == [False]


# -- what is refused --------------------------------------------------------------------------------------------------


def answer(herder: ByHand, signature: Signature | None, connector: ConnectorName = ORDERS) -> object:
    id_ = herder.ask(PutTaskConfigs(connector=connector, configs=CONFIGS, signature=signature))
    herder.obey()
    return herder.answer(id_)


def signed(letter: bytes, algorithm: str = "HmacSHA256", body: bytes = BODY) -> Signature:
    return Signing(key=letter * 32, algorithm=algorithm).signature(body)


UNSIGNED = RequestRefused(problem=Problem.BAD_REQUEST, message="Internal request missing required signature")
FORBIDDEN = RequestRefused(problem=Problem.FORBIDDEN, message="Internal request contained invalid signature.")


@pytest.mark.parametrize("protocol", SIGNING)
def test_a_leader_takes_what_is_signed_with_its_key_and_nothing_else(protocol: ConnectProtocol) -> None:
    herder = a_leader(protocol, key=key_of(b"k"))
    assert answer(herder, None) == UNSIGNED
    assert answer(herder, signed(b"x")) == FORBIDDEN
    assert answer(herder, replace(signed(b"k"), body=b"[]")) == FORBIDDEN
    assert answer(herder, signed(b"x"), ConnectorName("nope")) == FORBIDDEN, "before it is said what there is"
    unknown = answer(herder, signed(b"k"), ConnectorName("nope"))
    assert isinstance(unknown, RequestRefused)
    assert unknown.problem is Problem.NOT_FOUND
    assert answer(herder, signed(b"k")) == Done()
    assert herder.herder.config.tasks(ORDERS)


def test_an_algorithm_that_is_not_in_the_list_is_told_with_the_list_before_the_key_is_looked_for() -> None:
    herder = a_leader(verification_algorithms=("HmacSHA256", "HmacSHA512"))
    for algorithm in ("HmacMD5", "hmacsha256"):
        refused = answer(herder, signed(b"k", algorithm))
        assert isinstance(refused, RequestRefused)
        assert refused.problem is Problem.BAD_REQUEST
        assert f"does not support the '{algorithm}' key signing algorithm" in refused.message
        assert "currently configured to use: [HmacSHA256, HmacSHA512]." in refused.message


def test_a_leader_that_has_read_no_key_says_that_it_is_starting() -> None:
    herder = a_leader()
    herder.take(MakeSessionKey)
    id_ = herder.ask(PutTaskConfigs(connector=ORDERS, configs=CONFIGS, signature=signed(b"k")))
    refused = herder.answer(id_)
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.STARTING
    assert refused.message.endswith("has not been able to read a session key from the config topic yet")


def test_the_key_before_the_last_is_refused() -> None:
    herder = a_leader(key=key_of(b"k"))
    herder.write(config_records.session_key_line(key_of(b"l")))
    assert answer(herder, signed(b"k")) == FORBIDDEN
    assert answer(herder, signed(b"l")) == Done()


def test_a_follower_checks_too_and_then_says_who_leads() -> None:
    herder = a_herder(key=key_of(b"k"))
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    assert answer(herder, None) == UNSIGNED
    told = answer(herder, signed(b"k"))
    assert isinstance(told, RequestRefused)
    assert (told.problem, told.leader_url) == (Problem.NOT_LEADER, "http://leader:8083/")


@pytest.mark.parametrize("protocol", SILENT)
def test_in_an_older_protocol_nothing_is_checked(protocol: ConnectProtocol) -> None:
    for signature in (None, signed(b"x")):
        assert answer(a_leader(protocol, key=key_of(b"k")), signature) == Done()


def test_while_a_round_is_under_way_a_request_waits_for_what_is_voted() -> None:
    herder = a_herder(key=key_of(b"k"))
    id_ = herder.ask(PutTaskConfigs(connector=ORDERS, configs=CONFIGS))
    assert herder.answer(id_) is None
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.answer(id_) == UNSIGNED


def test_where_signing_is_in_force_nobody_waits_for_a_round_to_be_refused() -> None:
    herder = a_leader(key=key_of(b"k"))
    herder.tell(ROUND)
    assert answer(herder, None) == UNSIGNED
    assert answer(herder, signed(b"x")) == FORBIDDEN
    assert answer(herder, signed(b"k")) is None, "whether it leads is not known yet"


def test_a_leader_asks_itself_unsigned() -> None:
    herder = a_herder(key=key_of(b"k"))
    herder.assign(leader=ME, assigned=Jobs.of([ORDERS]), protocol=ConnectProtocol.SESSIONED)
    herder.obey()
    assert herder.herder.config.tasks(ORDERS)
