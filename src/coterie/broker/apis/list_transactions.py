"""ListTransactions: returns the transactional ids that match all of the request's filters: by state, by producer id, by
the duration of the open transaction, and by a pattern of the transactional id (KIP-664, KIP-994, KIP-1152). The
client's pattern is matched by RE2, which is part of pyarrow: it takes time linear in the text, while Python's `re`
takes exponential time for some patterns."""

import asyncio
from collections.abc import Sequence

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import TRANSACTIONAL_ID, AccessCheck, ApiAuthorization, Operation
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.transaction_messages import TransactionState, TransactionWritten
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_STATES = {"Dead", "PrepareAbort", "PrepareCommit", "PrepareEpochFence", *TransactionState}
"""The states that a request may contain; some of Kafka's states never occur in this broker."""

_IdAndTransaction = tuple[str, TransactionWritten]
"""A transactional id and its last written state."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    asked = [*dict.fromkeys(request.body.state_filters)]
    known = [state for state in asked if state in _STATES]
    pattern = request.field_or_default("transactional_id_pattern", None)
    try:
        # If all requested states are unknown, no transaction matches.
        transactions = await broker.transactions.read_all_transactions() if known or not asked else []
        if pattern:
            # On a thread: importing pyarrow takes a moment.
            transactions = await asyncio.to_thread(_transactions_matching_pattern, transactions, pattern)
    except WorldError:
        return _error_values(ErrorCode.kafka_storage_error)
    except ValueError:
        return _error_values(ErrorCode.invalid_regular_expression)
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [state for state in asked if state not in _STATES],
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": written.producer.producer_id,
                "transaction_state": str(written.state),
            }
            for transactional_id, written in transactions
            if (not asked or written.state in known)
            and _matches_producer_and_duration(request, written, broker.transactions.now_ms())
        ],
    }


def _error_values(error: ErrorCode) -> Values:
    return {"error_code": error, "transaction_states": ()}


def _transactions_matching_pattern(transactions: Sequence[_IdAndTransaction], pattern: str) -> list[_IdAndTransaction]:
    """The transactions whose whole transactional id matches ``pattern``.

    :raises ValueError: when the pattern is not a valid regular expression.
    """
    import pyarrow
    import pyarrow.compute

    # Validate the pattern alone: an invalid pattern may be valid inside the group below.
    pyarrow.compute.match_substring_regex(pyarrow.array([""], pyarrow.string()), pattern=pattern)
    names = pyarrow.array([name for name, _ in transactions], pyarrow.string())
    matched = pyarrow.compute.match_substring_regex(names, pattern=rf"\A(?:{pattern})\z").to_pylist()
    return [one for one, is_matched in zip(transactions, matched, strict=True) if is_matched]


def _matches_producer_and_duration(request: ApiRequest, written: TransactionWritten, now_ms: int) -> bool:
    """Whether the transaction matches the request's filters of producer id and duration. A transaction matches a
    duration if it is open and has lasted longer at ``now_ms``. A filter without producer ids, or with a negative
    duration, matches each transaction."""
    producer_ids = request.body.producer_id_filters
    longer_than_ms = request.field_or_default("duration_filter", -1)
    return (not producer_ids or written.producer.producer_id in producer_ids) and (
        longer_than_ms < 0
        or (written.state is TransactionState.ONGOING and now_ms - written.started_at_ms > longer_than_ms)
    )


def _is_transaction_visible(access: AccessCheck, transaction: Values) -> bool:
    return access.is_allowed(Operation.DESCRIBE, TRANSACTIONAL_ID, transaction["transactional_id"])


_AUTHORIZATION = ApiAuthorization(visibility_check_by_response_field={"transaction_states": _is_transaction_visible})
API = KafkaApi(key=66, versions=range(3), handle=handle, authorization=_AUTHORIZATION)
