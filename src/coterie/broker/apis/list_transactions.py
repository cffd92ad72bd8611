"""ListTransactions: v0-1 · transactional ids, by state, producer id and how long their transactions have been open
(KIP-664, KIP-994) · v2's pattern (KIP-1152): a regular expression of a stranger's could keep Python busy for ever."""

from coterie.broker.node import Node, Request
from coterie.groups.transaction_messages import TransactionState, TransactionWritten
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_STATES = {"Dead", "PrepareAbort", "PrepareCommit", "PrepareEpochFence", *TransactionState}
"""What may be asked for; in some of them nothing is ever found here."""


async def handle(node: Node, request: Request) -> Values:
    asked = [*dict.fromkeys(request.body.state_filters)]
    known = [state for state in asked if state in _STATES]
    try:
        # Who asks only for what there cannot be finds nothing.
        transactions = await node.transactions.read_all() if known or not asked else []
    except WorldError:
        return {"throttle_time": 0, "error_code": ErrorCode.kafka_storage_error, "transaction_states": ()}
    return {
        "throttle_time": 0,
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


def _is_wanted(request: Request, written: TransactionWritten, now_ms: int) -> bool:
    producer_ids = request.body.producer_id_filters
    longer_than_ms = request.told("duration_filter", -1)
    return (not producer_ids or written.producer.producer_id in producer_ids) and (
        longer_than_ms < 0
        or (written.state is TransactionState.ONGOING and now_ms - written.started_at_ms > longer_than_ms)
    )
