"""ListTransactions: transactional ids, filtered by state, producer id, duration of the open transaction, and pattern
(KIP-664, KIP-994, KIP-1152). The client's pattern is matched by RE2, which is part of pyarrow: its time is linear in
the text, while some patterns keep Python's `re` busy without end."""

import asyncio
from collections.abc import Sequence

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import TRANSACTIONAL_ID, AccessCheck, Operation, Permission
from coterie.broker.node import ApiRequest, Node
from coterie.groups.transaction_messages import TransactionState, TransactionWritten
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_STATES = {"Dead", "PrepareAbort", "PrepareCommit", "PrepareEpochFence", *TransactionState}
"""The valid states of Kafka; some never occur in this broker."""

_Named = tuple[str, TransactionWritten]


async def handle(node: Node, request: ApiRequest) -> Values:
    asked = [*dict.fromkeys(request.body.state_filters)]
    known = [state for state in asked if state in _STATES]
    pattern = request.told("transactional_id_pattern", None)
    try:
        # If all requested states are unknown, no transaction matches.
        transactions = await node.transactions.read_all() if known or not asked else []
        if pattern:
            # On a thread: importing pyarrow takes a moment.
            transactions = await asyncio.to_thread(_matching, transactions, pattern)
    except WorldError:
        return _failed(ErrorCode.kafka_storage_error)
    except ValueError:
        return _failed(ErrorCode.invalid_regular_expression)
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
            if (not asked or written.state in known) and _is_wanted(request, written, node.transactions.now_ms())
        ],
    }


def _failed(error: ErrorCode) -> Values:
    return {"error_code": error, "transaction_states": ()}


def _matching(transactions: Sequence[_Named], pattern: str) -> list[_Named]:
    """:raises ValueError: the pattern is not a valid regular expression."""
    import pyarrow
    import pyarrow.compute

    # Validate the pattern alone: an invalid pattern may be valid inside the group below.
    pyarrow.compute.match_substring_regex(pyarrow.array([""], pyarrow.string()), pattern=pattern)
    names = pyarrow.array([name for name, _ in transactions], pyarrow.string())
    matched = pyarrow.compute.match_substring_regex(names, pattern=rf"\A(?:{pattern})\z").to_pylist()
    return [one for one, is_matched in zip(transactions, matched, strict=True) if is_matched]


def _is_wanted(request: ApiRequest, written: TransactionWritten, now_ms: int) -> bool:
    producer_ids = request.body.producer_id_filters
    longer_than_ms = request.told("duration_filter", -1)
    return (not producer_ids or written.producer.producer_id in producer_ids) and (
        longer_than_ms < 0
        or (written.state is TransactionState.ONGOING and now_ms - written.started_at_ms > longer_than_ms)
    )


def _is_shown(access: AccessCheck, transaction: Values) -> bool:
    return access.may(Operation.DESCRIBE, TRANSACTIONAL_ID, transaction["transactional_id"])


_NEEDS = Permission(shown={"transaction_states": _is_shown})
API = KafkaApi(key=66, versions=range(3), handle=handle, needs=_NEEDS)
