"""Session keys (KIP-507): the leader rotates the key, workers sign their requests to the leader with it, and the leader
verifies the signatures. Only groups that use protocol sessioned or newer have session keys.

The shell makes a key, because a herder has no source of randomness. The key becomes valid for each worker, and for the
leader that wrote it, when the worker reads the key's line in the config log. So all workers use the same key, except in
the short time in which some of them have not read a new line.
"""

from coterie.herder import config_records
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import (
    AppendConfigLines,
    AppendForSessionKey,
    CancelTimer,
    MakeSessionKey,
    SessionKeyMade,
    SetTimer,
    WriteLogMessage,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, unknown_connector_refusal
from coterie.herder.requests.signatures import (
    ContentSignature,
    FenceTasks,
    SignatureCheckResult,
    SignatureRequest,
    SignContent,
    VerifySignature,
)
from coterie.herder.session_keys import (
    AppendingKey,
    KeyRetryPending,
    MakingKey,
    NoKeyUnderWay,
    ReadingKeyBack,
    SessionKey,
    Signature,
    SigningKey,
)
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import LogPosition

RETRY_MS = 1_000
"""The wait after a key could not be written to the config topic, before this worker may make another key."""
KEY_PROPAGATION_MS = 60_000
"""Connect's constant: for so long after a request was first sent, a refused signature may only mean that a worker has
not read the new key yet."""


def awaits_session_key(herder: Herder) -> bool:
    """Whether this worker must sign its requests and has not read any session key yet."""
    return protocol_of(herder).are_requests_signed(herder) and herder.config.session_key is None


def signing_key(herder: Herder) -> SigningKey | None:
    """The key and algorithm with which this worker signs requests now; None when it does not sign, or has no key."""
    known = herder.config.session_key
    if known is None or not protocol_of(herder).are_requests_signed(herder):
        return None
    return SigningKey(key=known.key, algorithm=herder.settings.session_key_settings.signature_algorithm)


def signature_refusal(herder: Herder, signature: Signature | None) -> RequestRefused | None:
    """The refusal of a request with ``signature``, with Connect's order of checks and Connect's messages. None when the
    signature is accepted, or when neither the group's protocol nor this worker's settings need one."""
    if not protocol_of(herder).are_requests_signed(herder):
        if not herder.settings.must_protocol_sign_requests:
            return None
        message = (
            "This worker accepts only signed requests from other workers, because users must log in (rest.users.file). "
            "The group uses a protocol without signatures, because connect.protocol is eager or compatible on at least "
            "one member: change it to sessioned there, or end that member"
        )
        return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
    if signature is None:
        return RequestRefused(problem=Problem.BAD_REQUEST, message="Internal request missing required signature")
    taken = herder.settings.session_key_settings.verification_algorithms
    if signature.algorithm not in taken:
        message = (
            f"This worker does not support the '{signature.algorithm}' key signing algorithm used by other workers. "
            f"This worker is currently configured to use: [{', '.join(taken)}]. Check that all workers' configuration "
            "files permit the same set of signature algorithms, and correct any misconfigured worker and restart it."
        )
        return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
    if herder.config.session_key is None:
        message = (
            "This worker is still starting up and has not been able to read a session key from the config topic yet"
        )
        return RequestRefused(problem=Problem.STARTING, message=message)
    if not signature.is_valid(herder.config.session_key):
        return RequestRefused(problem=Problem.FORBIDDEN, message="Internal request contained invalid signature.")
    return None


def answer_signature_request(
    herder: Herder, request: SignatureRequest
) -> ContentSignature | SignatureCheckResult | RequestRefused:
    """The response to a request to sign or to verify, or the refusal of a request to fence tasks."""
    match request:
        case SignContent(content=content):
            key = signing_key(herder)
            return ContentSignature(signature=None if key is None else key.signature(content))
        case VerifySignature(signature=signature):
            return SignatureCheckResult(reason_not_valid=_reason_signature_not_valid(herder, signature))
        case FenceTasks(connector=name, signature=signature):
            if (refused := signature_refusal(herder, signature)) is not None:
                return refused
            if herder.config.connector(name) is None:
                return unknown_connector_refusal(name)
            message = (
                f"The tasks of connector {name} cannot be fenced by a request: in Coterie the start of a task fences "
                "its earlier runs. Run the exactly-once sources of Kafka Connect in a group of Connect workers"
            )
            return RequestRefused(problem=Problem.BAD_REQUEST, message=message)


def _reason_signature_not_valid(herder: Herder, signature: Signature) -> str | None:
    """Why ``signature`` does not prove that the request was sent by a worker of the group; None if it does."""
    if not protocol_of(herder).are_requests_signed(herder):
        return "The group's protocol has no session keys, because connect.protocol of a member is eager or compatible"
    refusal = signature_refusal(herder, signature)
    if refusal is not None and refusal.problem is Problem.FORBIDDEN:
        return "The signature was made with another session key than the one that this worker has read last"
    return None if refusal is None else refusal.message


def may_predate_new_key(first_sent_at_ms: int | None, now_ms: int) -> bool:
    """Whether a signature that was refused at ``now_ms`` may have been made just before a new key was read: the request
    was first sent, at ``first_sent_at_ms``, at most :data:`KEY_PROPAGATION_MS` before. False when it was never sent to
    another worker (None)."""
    return first_sent_at_ms is not None and now_ms <= first_sent_at_ms + KEY_PROPAGATION_MS


# -- the key's rotation by the leader ---------------------------------------------------------------------------------


def rotate_session_key_if_due(turn: Turn) -> None:
    """Order a key from the shell when a new key is needed, and set the timer for the time at which the next one is
    needed."""
    herder, rotation = turn.herder, turn.herder.rotation
    if herder.config.session_key != rotation.current_key:
        rotation.current_key, rotation.current_key_read_at_ms = herder.config.session_key, turn.now_ms
    match rotation.state:
        case ReadingKeyBack(end_offset=end) if herder.has_read_config_to(end):
            rotation.state = NoKeyUnderWay()
        case KeyRetryPending(retry_at_ms=until_ms) if turn.now_ms >= until_ms:
            rotation.state = NoKeyUnderWay()
        case _:
            pass
    if isinstance(rotation.state, NoKeyUnderWay) and _must_make_new_key_here(turn):
        rotation.state = MakingKey()
        turn.emit(MakeSessionKey(size_bytes=herder.settings.session_key_settings.key_size_bytes))
    match rotation.state:
        case KeyRetryPending(retry_at_ms=until_ms):
            _set_rotation_timer(turn, until_ms)
        case _:
            _set_rotation_timer(turn, _key_expires_at_monotonic_ms(herder))


def store_wall_clock_offset(turn: Turn, wall_ms: int) -> None:
    """Store the difference between the wall clock and the monotonic clock."""
    turn.herder.rotation.wall_clock_offset_ms = wall_ms - turn.now_ms


def on_session_key_made(turn: Turn, event: SessionKeyMade) -> None:
    """Append the new key to the config log, unless it is no longer needed."""
    herder, rotation = turn.herder, turn.herder.rotation
    rotation.state = NoKeyUnderWay()
    rotation.wall_clock_offset_ms = event.wall_clock_ms - turn.now_ms
    if not _must_make_new_key_here(turn):
        return  # Another worker is the leader now or wrote a key, or the clock was set back: the key is not old yet.
    made = SessionKey(
        key=event.key,
        algorithm=herder.settings.session_key_settings.key_algorithm,
        created_at_ms=event.wall_clock_ms,
    )
    rotation.keys_made += 1
    rotation.state = AppendingKey(key_number=rotation.keys_made)
    line = config_records.session_key_line(made)
    opening = herder.leader_log.writable_opening_number
    assert opening is not None, "only a leader that may write needs a key"
    turn.emit(
        AppendConfigLines(
            purpose=AppendForSessionKey(key_number=rotation.keys_made), lines=(line,), leader_log_opening_number=opening
        )
    )


def on_session_key_appended(turn: Turn, made_key_number: int, end_offset: LogPosition) -> None:
    """The key's line is durable: wait until this worker reads it."""
    rotation = turn.herder.rotation
    if rotation.state == AppendingKey(key_number=made_key_number):
        rotation.state = ReadingKeyBack(end_offset=end_offset)
        rotate_session_key_if_due(turn)


def on_session_key_append_failed(turn: Turn, made_key_number: int, reason: str) -> None:
    """The key could not be written: log it, and wait before another key is made."""
    rotation = turn.herder.rotation
    if rotation.state == AppendingKey(key_number=made_key_number):
        rotation.state = KeyRetryPending(retry_at_ms=turn.now_ms + RETRY_MS)
        turn.emit(
            WriteLogMessage(
                text=f"A session key could not be written to the config topic; in {RETRY_MS} ms this worker makes "
                f"another key, if one is still needed: {reason}"
            )
        )
        rotate_session_key_if_due(turn)


def clear_fired_rotation_timer(turn: Turn) -> None:
    """The timer has fired. :func:`rotate_session_key_if_due`, which follows every timer, sets it again."""
    turn.herder.rotation.timer_at_ms = None


def _is_key_maker(herder: Herder) -> bool:
    """Whether this worker makes keys: it is the leader and may write as the leader, has read the config log up to the
    last assignment, and is not leaving, and the group uses session keys."""
    # A leader that has read the config log to its members' offsets has also read a key that is stored there.
    return (
        herder.place.is_leader_with_current_assignment
        and herder.leader_log.writable_opening_number is not None
        and herder.is_caught_up
        and protocol_of(herder).are_requests_signed(herder)
        and not herder.lifecycle.is_shutting_down
    )


def _must_make_new_key_here(turn: Turn) -> bool:
    """Whether this worker must make a new key now: it makes keys (:func:`_is_key_maker`), knows the wall clock, and
    there is no key, or the key has another algorithm or size than the settings, or has expired."""
    herder, known, wanted = turn.herder, turn.herder.config.session_key, turn.herder.settings.session_key_settings
    if not _is_key_maker(herder) or herder.rotation.wall_clock_offset_ms is None:
        return False
    if known is None or (known.algorithm, len(known.key)) != (wanted.key_algorithm, wanted.key_size_bytes):
        return True
    expires_ms = _key_expires_at_monotonic_ms(herder)
    return expires_ms is not None and turn.now_ms >= expires_ms


def _key_expires_at_monotonic_ms(herder: Herder) -> int | None:
    """When the current key expires, in ms on this worker's monotonic clock. None when there is no key, it does not
    expire, another key is being made, the wall clock is not known yet, or this worker does not make keys."""
    known, ttl_ms, epoch_ms = (
        herder.config.session_key,
        herder.settings.session_key_settings.ttl_ms,
        herder.rotation.wall_clock_offset_ms,
    )
    if known is None or ttl_ms == 0 or epoch_ms is None or herder.rotation.is_under_way or not _is_key_maker(herder):
        return None
    return min(known.created_at_ms - epoch_ms, herder.rotation.current_key_read_at_ms) + ttl_ms


def _set_rotation_timer(turn: Turn, at_ms: int | None) -> None:
    """Set the rotation's timer to ``at_ms``; None cancels it."""
    rotation = turn.herder.rotation
    if at_ms == rotation.timer_at_ms:
        return
    rotation.timer_at_ms = at_ms
    turn.emit(CancelTimer(timer="session key") if at_ms is None else SetTimer(timer="session key", at_ms=at_ms))
