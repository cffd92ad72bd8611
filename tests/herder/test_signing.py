"""Session keys in a herder: which worker writes one and when, which requests are signed, which are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    ConfigLinesAppended,
    ConfigLinesAppendFailed,
    MakeSessionKey,
    SendTaskConfigsToLeader,
    SessionKeyMade,
    SetTimer,
    SplitConnector,
    SplitSucceeded,
    TaskConfigsPublicationEnded,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.signatures import SignatureCheckResult, VerifySignature
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.herder.session_keys import SessionKey, SessionKeySettings, Signature, SigningKey
from coterie.herder.timers import ConnectorRetryDue
from coterie.nouns.ids import Incarnation, LogPosition
from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.wire.connect import ConnectProtocol
from tests.herder.herder_driver import ME, ROUND, WALL_MS, HerderDriver

HOUR_MS = 3_600_000
ORDERS = ConnectorName("orders")
CONNECTOR_LINE = config_records.connector_line(
    ORDERS, {"connector.class": "X", "name": "orders"}, Incarnation("incarnation-0")
)
CONFIGS = ({"share": "0/1"},)
BODY = b'[{"share": "0/1"}]'
SIGNED_PROTOCOLS = [ConnectProtocol.SESSIONED, ConnectProtocol.STATIC]
UNSIGNED_PROTOCOLS = [ConnectProtocol.EAGER, ConnectProtocol.COMPATIBLE]


def key_of(letter: bytes, *, created_at_ms: int = WALL_MS, algorithm: str = "HmacSHA256", size: int = 32) -> SessionKey:
    return SessionKey(key=letter * size, algorithm=algorithm, created_at_ms=created_at_ms)


def herder_with_key(*, key: SessionKey | None = None, **session_keys: Any) -> HerderDriver:
    """A herder started at ``WALL_MS``, with a config log that may contain ``key``."""
    herder = HerderDriver()
    herder.herder.settings = replace(herder.herder.settings, session_key_settings=SessionKeySettings(**session_keys))
    herder.write(CONNECTOR_LINE, *(() if key is None else (config_records.session_key_line(key),)))
    herder.open_runtime()
    return herder


def leader_with_key(
    protocol: ConnectProtocol = ConnectProtocol.SESSIONED, *, key: SessionKey | None = None, **session_keys: Any
) -> HerderDriver:
    herder = herder_with_key(key=key, **session_keys)
    herder.assign(leader=ME, protocol=protocol)
    return herder


def last_session_key(herder: HerderDriver) -> dict[str, Any]:
    """The value of the last record in the config log, which must be a session key."""
    assert herder.config[-1].key == b"session-key"
    assert herder.config[-1].value is not None
    value: dict[str, Any] = json.loads(herder.config[-1].value)
    return value


def advance_clock(herder: HerderDriver, ms: int) -> None:
    """Advance the clock and fire the session key timers that are due."""
    end_ms = herder.now_ms + ms
    while timers := [timer for timer in herder.pop_effects(SetTimer) if timer.timer == "session key"]:
        if timers[-1].at_ms > end_ms:
            herder.effects.append(timers[-1])
            break
        herder.now_ms = max(herder.now_ms, timers[-1].at_ms)
        herder.feed(TimerFired(timer="session key"))
    herder.now_ms = end_ms


# -- which worker writes a key, and when ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", SIGNED_PROTOCOLS)
def test_a_leader_without_a_key_writes_one(protocol: ConnectProtocol) -> None:
    herder = leader_with_key(protocol)
    assert herder.pop_effects(MakeSessionKey) == [MakeSessionKey(size_bytes=32)]
    herder.now_ms += 5
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"k" * 32))
    (append,) = herder.pop_effects(AppendConfigLines)
    assert append.lines == (config_records.session_key_line(key_of(b"k", created_at_ms=WALL_MS + 5)),)
    assert herder.herder.config.session_key is None, "it takes effect when it is read back"
    herder.write(*append.lines)
    herder.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(2)))
    assert herder.herder.config.session_key == key_of(b"k", created_at_ms=WALL_MS + 5)
    assert not herder.pop_effects(MakeSessionKey)


@pytest.mark.parametrize("protocol", UNSIGNED_PROTOCOLS)
def test_an_older_protocol_has_no_keys(protocol: ConnectProtocol) -> None:
    assert not leader_with_key(protocol).pop_effects(MakeSessionKey)


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_signature_is_believed_only_in_a_group_whose_protocol_has_session_keys(protocol: ConnectProtocol) -> None:
    """The config log may contain the key of an earlier time, when the group had a newer protocol."""
    herder = leader_with_key(protocol, key=key_of(b"k"))
    for letter, is_right in ((b"k", True), (b"l", False)):
        signature = SigningKey(key=letter * 32, algorithm="HmacSHA256").signature(BODY)
        check = herder.send_request(VerifySignature(signature=signature))
        result = herder.answer(check)
        assert isinstance(result, SignatureCheckResult)
        assert (result.reason_not_valid is None) == (is_right and protocol in SIGNED_PROTOCOLS)


@pytest.mark.parametrize(
    ("protocol", "key", "reason"),
    [
        (ConnectProtocol.COMPATIBLE, b"k", "The group's protocol has no session keys"),
        (ConnectProtocol.SESSIONED, None, "has not been able to read a session key from the config topic yet"),
        (ConnectProtocol.SESSIONED, b"l", "made with another session key than the one that this worker has read last"),
    ],
)
def test_a_signature_that_is_not_valid_has_a_reason(protocol: ConnectProtocol, key: bytes | None, reason: str) -> None:
    herder = leader_with_key(protocol, key=None if key is None else key_of(key))
    signature = SigningKey(key=b"k" * 32, algorithm="HmacSHA256").signature(BODY)
    result = herder.answer(herder.send_request(VerifySignature(signature=signature)))
    assert isinstance(result, SignatureCheckResult)
    assert result.reason_not_valid is not None
    assert reason in result.reason_not_valid


def test_a_follower_writes_no_key_even_if_the_current_one_is_expired() -> None:
    herder = herder_with_key(key=key_of(b"k", created_at_ms=WALL_MS - 2 * HOUR_MS))
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    assert not herder.pop_effects(MakeSessionKey)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.pop_effects(MakeSessionKey), "now it leads"


def test_a_key_is_replaced_when_its_ttl_is_over_also_if_another_leader_made_it() -> None:
    # Another leader made it, with another steady clock: the wall-clock time in the record decides.
    herder = leader_with_key(key=key_of(b"k", created_at_ms=WALL_MS - HOUR_MS + 60_000))
    advance_clock(herder, 59_999)
    assert not herder.pop_effects(MakeSessionKey)
    advance_clock(herder, 1)
    herder.run_all_chores()
    assert last_session_key(herder)["creation-timestamp"] == WALL_MS + 60_000
    advance_clock(herder, HOUR_MS - 1)
    assert not herder.pop_effects(MakeSessionKey)
    advance_clock(herder, 1)
    assert herder.pop_effects(MakeSessionKey)


def test_a_key_dated_in_the_future_is_used_no_longer_than_a_fresh_one() -> None:
    # Another leader's clock was ahead when it made the key, or this leader's clock was behind when it started.
    herder = leader_with_key(key=key_of(b"k", created_at_ms=WALL_MS + 8_760 * HOUR_MS))
    advance_clock(herder, HOUR_MS - 1)
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert not herder.pop_effects(MakeSessionKey)
    advance_clock(herder, 1)
    herder.run_all_chores()
    assert last_session_key(herder)["creation-timestamp"] == WALL_MS + HOUR_MS
    herder.write(config_records.session_key_line(key_of(b"l", created_at_ms=WALL_MS + 8_760 * HOUR_MS)))
    advance_clock(herder, HOUR_MS - 1)
    assert not herder.pop_effects(MakeSessionKey)
    advance_clock(herder, 1)
    assert herder.pop_effects(MakeSessionKey), "the second key has its own ttl"


def test_without_a_ttl_a_key_is_never_replaced() -> None:
    herder = leader_with_key(key=key_of(b"k", created_at_ms=0), ttl_ms=0)
    advance_clock(herder, 1_000 * HOUR_MS)
    assert not herder.pop_effects(MakeSessionKey)


@pytest.mark.parametrize("other", [key_of(b"k", algorithm="HmacSHA1"), key_of(b"k", size=31), key_of(b"k", size=64)])
def test_a_key_that_does_not_match_the_settings_is_replaced_at_once(other: SessionKey) -> None:
    herder = leader_with_key(key=other)
    herder.run_all_chores()
    assert herder.herder.config.session_key is not None
    assert (herder.herder.config.session_key.algorithm, len(herder.herder.config.session_key.key)) == (
        "HmacSHA256",
        32,
    )
    assert not herder.chores()


def test_the_next_key_is_dated_by_the_adjusted_wall_clock() -> None:
    herder = leader_with_key(key=key_of(b"k", created_at_ms=WALL_MS - 3_600_000))
    assert herder.pop_effects(MakeSessionKey)
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms + 7_000_000, key=b"l" * 32))
    (append,) = herder.pop_effects(AppendConfigLines)
    assert append.lines == (config_records.session_key_line(key_of(b"l", created_at_ms=herder.wall_ms + 7_000_000)),)
    herder.write(*append.lines)
    herder.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(len(herder.config))))
    advance_clock(herder, 3_599_000)
    assert not herder.pop_effects(MakeSessionKey)
    advance_clock(herder, 2_000)
    assert len(herder.pop_effects(MakeSessionKey)) == 1, "an hour later, by the adjusted clock"


def test_after_a_clock_set_back_a_key_that_is_not_expired_is_kept() -> None:
    herder = leader_with_key(key=key_of(b"k", created_at_ms=WALL_MS - 3_600_000))
    assert herder.pop_effects(MakeSessionKey)
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms - 600_000, key=b"l" * 32))
    assert not herder.pop_effects(AppendConfigLines)
    advance_clock(herder, 601_000)
    assert len(herder.pop_effects(MakeSessionKey)) == 1


def test_a_failed_write_is_retried_unless_its_record_was_written_after_all() -> None:
    herder = leader_with_key()
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"k" * 32))
    herder.pop_effects(MakeSessionKey)
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.feed(ConfigLinesAppendFailed(purpose=append.purpose, reason="no route"))
    assert any("no route" in log_message.text for log_message in herder.pop_effects(WriteLogMessage))
    assert not herder.pop_effects(MakeSessionKey), "not before the retry delay"
    advance_clock(herder, 1_000)
    assert herder.pop_effects(MakeSessionKey) == [MakeSessionKey(size_bytes=32)]
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"l" * 32))
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.write(*append.lines)
    herder.feed(ConfigLinesAppendFailed(purpose=append.purpose, reason="no answer"))
    advance_clock(herder, 1_000)
    assert not herder.pop_effects(MakeSessionKey), "the record was written"


def test_a_worker_that_no_longer_leads_when_its_key_is_made_does_not_write_it() -> None:
    herder = leader_with_key()
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"k" * 32))
    assert not herder.pop_effects(AppendConfigLines)
    herder.pop_effects(MakeSessionKey)
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.pop_effects(MakeSessionKey), "and it makes another one when it leads again"


def test_only_one_key_is_written_until_its_record_is_read() -> None:
    herder = leader_with_key(key=key_of(b"k", created_at_ms=0))
    assert len(herder.pop_effects(MakeSessionKey)) == 1
    herder.feed(SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"l" * 32))
    (append,) = herder.pop_effects(AppendConfigLines)
    herder.write(*append.lines, read=False)
    herder.feed(ConfigLinesAppended(purpose=append.purpose, end_offset=LogPosition(3)))
    herder.feed(TimerFired(timer="session key"))
    assert not herder.pop_effects(MakeSessionKey)


def test_no_traced_message_contains_a_key() -> None:
    herder = leader_with_key()
    event = SessionKeyMade(wall_clock_ms=herder.wall_ms, key=b"secretsecretsecretsecretsecretse")
    herder.feed(event)
    shown = f"{event} {herder.effects}"
    assert "secret" not in shown
    assert "c2VjcmV0" not in shown, "nor in base64"


# -- which requests are signed ----------------------------------------------------------------------------------------


def owner_after_split(protocol: ConnectProtocol, *, key: SessionKey | None) -> HerderDriver:
    """A follower that has split its connector."""
    herder = herder_with_key(key=key)
    herder.assign(assigned=Jobs.of([ORDERS]), protocol=protocol)
    (split,) = herder.pop_effects(SplitConnector)
    herder.feed(SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=CONFIGS))
    return herder


@pytest.mark.parametrize("protocol", SIGNED_PROTOCOLS)
def test_a_follower_signs_with_the_newest_key_that_it_has_read(protocol: ConnectProtocol) -> None:
    herder = owner_after_split(protocol, key=None)
    assert not herder.pop_effects(SendTaskConfigsToLeader), "there is no key yet"
    herder.write(config_records.session_key_line(key_of(b"k")))
    (published,) = herder.pop_effects(SendTaskConfigsToLeader)
    assert published.signing_key == SigningKey(key=b"k" * 32, algorithm="HmacSHA256")


@pytest.mark.parametrize("protocol", UNSIGNED_PROTOCOLS)
def test_with_an_older_protocol_nothing_is_signed_even_if_there_is_a_key(protocol: ConnectProtocol) -> None:
    (published,) = owner_after_split(protocol, key=key_of(b"k")).pop_effects(SendTaskConfigsToLeader)
    assert published.signing_key is None


def test_a_refused_signature_is_logged_as_an_error_only_after_the_key_propagation_time() -> None:
    herder = owner_after_split(ConnectProtocol.SESSIONED, key=key_of(b"k"))
    herder.pop_effects(SendTaskConfigsToLeader)
    first_ms, keys = herder.now_ms, iter(b"lmnopqrstuvw")
    levels_before_limit: list[list[bool]] = []
    levels_after_limit: list[list[bool]] = []
    for _ in range(9):
        herder.pop_effects(WriteLogMessage)
        herder.feed(
            TaskConfigsPublicationEnded(
                connector=ORDERS, config_line_offset=0, refusal="403", is_signature_refused=True
            )
        )
        (levels_before_limit if herder.now_ms <= first_ms + 60_000 else levels_after_limit).append(
            [log_message.is_error for log_message in herder.pop_effects(WriteLogMessage)]
        )
        (retry,) = [timer for timer in herder.pop_effects(SetTimer) if isinstance(timer.timer, ConnectorRetryDue)]
        newer = bytes([next(keys)])
        herder.write(config_records.session_key_line(key_of(newer)))
        herder.now_ms = retry.at_ms
        herder.feed(TimerFired(timer=retry.timer))
        (published,) = herder.pop_effects(SendTaskConfigsToLeader)
        assert published.signing_key is not None
        assert published.signing_key.key == newer * 32, "the newest key"
    assert levels_before_limit == [[]] * 8
    assert levels_after_limit == [[True]]


def test_another_refusal_is_logged_at_once() -> None:
    herder = owner_after_split(ConnectProtocol.SESSIONED, key=key_of(b"k"))
    herder.pop_effects(WriteLogMessage)
    herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=0, refusal="no route"))
    assert [log_message.is_error for log_message in herder.pop_effects(WriteLogMessage)] == [False]


# -- which requests are refused ---------------------------------------------------------------------------------------


def answer(herder: HerderDriver, signature: Signature | None, connector: ConnectorName = ORDERS) -> object:
    id_ = herder.send_request(PutTaskConfigs(connector=connector, configs=CONFIGS, signature=signature))
    herder.run_all_chores()
    return herder.answer(id_)


def signed(letter: bytes, algorithm: str = "HmacSHA256", body: bytes = BODY) -> Signature:
    return SigningKey(key=letter * 32, algorithm=algorithm).signature(body)


UNSIGNED = RequestRefused(problem=Problem.BAD_REQUEST, message="Internal request missing required signature")
FORBIDDEN = RequestRefused(problem=Problem.FORBIDDEN, message="Internal request contained invalid signature.")


@pytest.mark.parametrize("protocol", SIGNED_PROTOCOLS)
def test_a_leader_accepts_only_requests_signed_with_its_key(protocol: ConnectProtocol) -> None:
    herder = leader_with_key(protocol, key=key_of(b"k"))
    assert answer(herder, None) == UNSIGNED
    assert answer(herder, signed(b"x")) == FORBIDDEN
    assert answer(herder, replace(signed(b"k"), body=b"[]")) == FORBIDDEN
    assert answer(herder, signed(b"x"), ConnectorName("nope")) == FORBIDDEN, (
        "the signature is checked before the connector's existence"
    )
    unknown = answer(herder, signed(b"k"), ConnectorName("nope"))
    assert isinstance(unknown, RequestRefused)
    assert unknown.problem is Problem.NOT_FOUND
    assert answer(herder, signed(b"k")) == SuccessWithoutContent()
    assert herder.herder.config.committed_tasks(ORDERS)


def test_an_unsupported_algorithm_is_refused_with_the_supported_ones_before_the_key_is_checked() -> None:
    herder = leader_with_key(verification_algorithms=("HmacSHA256", "HmacSHA512"))
    for algorithm in ("HmacMD5", "hmacsha256"):
        refused = answer(herder, signed(b"k", algorithm))
        assert isinstance(refused, RequestRefused)
        assert refused.problem is Problem.BAD_REQUEST
        assert f"does not support the '{algorithm}' key signing algorithm" in refused.message
        assert "currently configured to use: [HmacSHA256, HmacSHA512]." in refused.message


def test_a_leader_that_has_read_no_key_answers_that_it_is_starting() -> None:
    herder = leader_with_key()
    herder.pop_effects(MakeSessionKey)
    id_ = herder.send_request(PutTaskConfigs(connector=ORDERS, configs=CONFIGS, signature=signed(b"k")))
    refused = herder.answer(id_)
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.STARTING
    assert refused.message.endswith("has not been able to read a session key from the config topic yet")


def test_the_previous_key_is_refused() -> None:
    herder = leader_with_key(key=key_of(b"k"))
    herder.write(config_records.session_key_line(key_of(b"l")))
    assert answer(herder, signed(b"k")) == FORBIDDEN
    assert answer(herder, signed(b"l")) == SuccessWithoutContent()


def test_a_follower_checks_the_signature_and_then_redirects_to_the_leader() -> None:
    herder = herder_with_key(key=key_of(b"k"))
    herder.assign(protocol=ConnectProtocol.SESSIONED)
    assert answer(herder, None) == UNSIGNED
    refusal = answer(herder, signed(b"k"))
    assert isinstance(refusal, RequestRefused)
    assert (refusal.problem, refusal.redirect_url) == (Problem.NOT_LEADER, "http://leader:8083/")


@pytest.mark.parametrize("protocol", UNSIGNED_PROTOCOLS)
def test_with_an_older_protocol_no_signature_is_checked(protocol: ConnectProtocol) -> None:
    for signature in (None, signed(b"x")):
        assert answer(leader_with_key(protocol, key=key_of(b"k")), signature) == SuccessWithoutContent()


@pytest.mark.parametrize("protocol", UNSIGNED_PROTOCOLS)
def test_where_users_log_in_no_unsigned_request_is_believed_with_an_older_protocol(protocol: ConnectProtocol) -> None:
    """A worker of an older protocol, which joins, must not open the API to requests without a log-in."""
    herder = leader_with_key(protocol, key=key_of(b"k"))
    herder.herder.settings = replace(herder.herder.settings, must_protocol_sign_requests=True)
    for signature in (None, signed(b"x"), signed(b"k")):
        refusal = answer(herder, signature)
        assert isinstance(refusal, RequestRefused)
        assert refusal.problem is Problem.BAD_REQUEST
        assert "change it to sessioned there, or end that member" in refusal.message


def test_before_the_first_rebalance_a_request_waits_for_the_selected_protocol() -> None:
    herder = herder_with_key(key=key_of(b"k"))
    id_ = herder.send_request(PutTaskConfigs(connector=ORDERS, configs=CONFIGS))
    assert herder.answer(id_) is None
    herder.assign(leader=ME, protocol=ConnectProtocol.SESSIONED)
    assert herder.answer(id_) == UNSIGNED


def test_with_a_signing_protocol_an_invalid_signature_is_refused_also_during_a_rebalance() -> None:
    herder = leader_with_key(key=key_of(b"k"))
    herder.feed(ROUND)
    assert answer(herder, None) == UNSIGNED
    assert answer(herder, signed(b"x")) == FORBIDDEN
    assert answer(herder, signed(b"k")) is None, "the next leader is not known yet"


def test_a_leader_does_not_sign_requests_to_itself() -> None:
    herder = herder_with_key(key=key_of(b"k"))
    herder.assign(leader=ME, assigned=Jobs.of([ORDERS]), protocol=ConnectProtocol.SESSIONED)
    herder.run_all_chores()
    assert herder.herder.config.committed_tasks(ORDERS)
