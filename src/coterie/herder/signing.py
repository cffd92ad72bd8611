"""Session keys (KIP-507): the leader rotates the key, workers sign their requests to the leader with it, and the leader
verifies the signatures. Only groups that use protocol sessioned or newer have session keys.

The shell makes a key, because a herder has no source of randomness. The key becomes valid for each worker, and for the
leader that wrote it, when the worker reads its line in the config log. So all workers use the same key, except in the
short time in which some of them have not read a new line.
"""

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfig,
    CancelTimer,
    ForSessionKey,
    MakeSessionKey,
    Say,
    SessionKeyMade,
    SetTimer,
)
from coterie.herder.requests import Problem, RequestRefused
from coterie.herder.rounds.spoken import are_requests_signed
from coterie.herder.session_keys import (
    AppendsKey,
    KeyOrdered,
    NoKeyUnderWay,
    ReadsKeyBack,
    SessionKey,
    Signature,
    Signing,
    WaitsAfterFailure,
)
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import ConfigOffset

RETRY_MS = 1_000
RACE_MS = 60_000
"""Connect's constant: for this time, a refused signature may only mean that a worker has not read the new key yet."""


def awaits_key(herder: Herder) -> bool:
    """Whether this worker must sign its requests and has not read a session key yet."""
    return are_requests_signed(herder) and herder.config.session_key is None


def signing(herder: Herder) -> Signing | None:
    """The key and algorithm with which this worker signs now; None when it does not sign."""
    known = herder.config.session_key
    if known is None or not are_requests_signed(herder):
        return None
    return Signing(key=known.key, algorithm=herder.settings.session_keys.signature_algorithm)


def refusal(herder: Herder, signature: Signature | None) -> RequestRefused | None:
    """The refusal of a request with ``signature``, with Connect's order of checks and Connect's messages; None when the
    signature is accepted."""
    if not are_requests_signed(herder):
        return None
    if signature is None:
        return RequestRefused(problem=Problem.BAD_REQUEST, message="Internal request missing required signature")
    taken = herder.settings.session_keys.verification_algorithms
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


def may_have_raced(first_tried_ms: int | None, now_ms: int) -> bool:
    """Whether a signature that was refused now may have been made just before a new key was read."""
    return first_tried_ms is not None and now_ms <= first_tried_ms + RACE_MS


# -- the key's rotation by the leader ---------------------------------------------------------------------------------


def advance(turn: Turn) -> None:
    """Order a key when a new key is needed, and set the timer for the next rotation."""
    herder, rotation = turn.herder, turn.herder.rotation
    if herder.config.session_key != rotation.known:
        rotation.known, rotation.known_since_ms = herder.config.session_key, turn.now_ms
    match rotation.state:
        case ReadsKeyBack(end=end) if herder.has_read(end):
            rotation.state = NoKeyUnderWay()
        case WaitsAfterFailure(until_ms=until_ms) if turn.now_ms >= until_ms:
            rotation.state = NoKeyUnderWay()
        case _:
            pass
    if isinstance(rotation.state, NoKeyUnderWay) and _wants_a_key(turn):
        rotation.state = KeyOrdered()
        turn.order(MakeSessionKey(size_bytes=herder.settings.session_keys.size_bytes))
    match rotation.state:
        case WaitsAfterFailure(until_ms=until_ms):
            _wake(turn, until_ms)
        case _:
            _wake(turn, _expires_ms(herder))


def on_opened(turn: Turn, wall_ms: int) -> None:
    turn.herder.rotation.epoch_ms = wall_ms - turn.now_ms


def on_made(turn: Turn, event: SessionKeyMade) -> None:
    herder, rotation = turn.herder, turn.herder.rotation
    rotation.state = NoKeyUnderWay()
    rotation.epoch_ms = event.wall_ms - turn.now_ms
    if not _wants_a_key(turn):
        return  # Another worker is the leader now or wrote a key, or the clock was set back: the key is not old yet.
    made = SessionKey(
        key=event.key,
        algorithm=herder.settings.session_keys.algorithm,
        created_at_ms=event.wall_ms,
    )
    rotation.made += 1
    rotation.state = AppendsKey(number=rotation.made)
    line = config_records.session_key_line(made)
    turn.order(AppendConfig(purpose=ForSessionKey(number=rotation.made), lines=(line,)))


def on_appended(turn: Turn, number: int, end: ConfigOffset) -> None:
    rotation = turn.herder.rotation
    if rotation.state == AppendsKey(number=number):
        rotation.state = ReadsKeyBack(end=end)
        advance(turn)


def on_append_failed(turn: Turn, number: int, reason: str) -> None:
    rotation = turn.herder.rotation
    if rotation.state == AppendsKey(number=number):
        rotation.state = WaitsAfterFailure(until_ms=turn.now_ms + RETRY_MS)
        turn.order(Say(text=f"The session key could not be written; the next attempt is in {RETRY_MS} ms: {reason}"))
        advance(turn)


def on_due(turn: Turn) -> None:
    """The timer has fired. :func:`advance`, which follows every event, sets it again."""
    turn.herder.rotation.wakes_at_ms = None


def _leads(herder: Herder) -> bool:
    # A leader that has read the config log to its members' offsets has also read a key that is stored there.
    return herder.place.is_leader and herder.caught_up and are_requests_signed(herder) and not herder.life.is_leaving


def _wants_a_key(turn: Turn) -> bool:
    herder, known, wanted = turn.herder, turn.herder.config.session_key, turn.herder.settings.session_keys
    if not _leads(herder) or herder.rotation.epoch_ms is None:
        return False
    if known is None or (known.algorithm, len(known.key)) != (wanted.algorithm, wanted.size_bytes):
        return True
    expires_ms = _expires_ms(herder)
    return expires_ms is not None and turn.now_ms >= expires_ms


def _expires_ms(herder: Herder) -> int | None:
    """When the current key expires, on this worker's monotonic clock; None when the key does not expire, or when this
    worker does not rotate it."""
    known, ttl_ms, epoch_ms = herder.config.session_key, herder.settings.session_keys.ttl_ms, herder.rotation.epoch_ms
    if known is None or ttl_ms == 0 or epoch_ms is None or herder.rotation.is_under_way or not _leads(herder):
        return None
    return min(known.created_at_ms - epoch_ms, herder.rotation.known_since_ms) + ttl_ms


def _wake(turn: Turn, at_ms: int | None) -> None:
    rotation = turn.herder.rotation
    if at_ms == rotation.wakes_at_ms:
        return
    rotation.wakes_at_ms = at_ms
    turn.order(CancelTimer(timer="session key") if at_ms is None else SetTimer(timer="session key", at_ms=at_ms))
