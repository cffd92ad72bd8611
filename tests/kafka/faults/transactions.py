"""Faults of requests about producers and transactions."""

from functools import partial

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import Fields, Row

INIT: Fields = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

_init = partial(Row, "InitProducerId", 5)

ROWS = (_init("of an idempotent producer", E.none, INIT),)
