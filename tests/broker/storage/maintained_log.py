"""A log with frequent maintenance, and a helper to write to it; also for programs that tests start and kill."""

from coterie.broker.settings import MaintenanceSettings
from coterie.broker.storage.log import BrokerLog
from coterie.wire.batches import NewRecord, encode_batch, read_batch_header

FREQUENT_MAINTENANCE = MaintenanceSettings(retention_check_interval_ms=1, cleaner_backoff_ms=1, initial_delay_ms=0)
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "20"}


async def put(log: BrokerLog, topic: str, records: dict[str, str | None]) -> int:
    data = encode_batch(
        [
            NewRecord(key=key.encode(), value=None if value is None else value.encode())
            for key, value in records.items()
        ],
        timestamp_ms=5,
    )
    return await log.append(log.topics[topic].partitions[0], [(data, read_batch_header(data))])
