"""Connect groups in a log that is compacted, checked and copied."""

import asyncio
from itertools import count
from pathlib import Path

from coterie.broker.clock import wall_clock_ms
from coterie.broker.groups.connect import CONNECT_TOPIC
from coterie.broker.maintenance.backup import back_up_log_and_return_size
from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.storage.log import BrokerLog, open_log
from coterie.broker.storage.store import Store
from coterie.groups.connect.messages import DescribeGroupResponse
from tests.broker.groups.connect_groups import beat, connect_groups, described
from tests.broker.storage.maintained_log import FREQUENT_MAINTENANCE

UPDATES = 300


async def loaded(folder: Path) -> DescribeGroupResponse:
    """The description of the group that the log in ``folder`` contains."""
    async with open_log(folder / "log", folder / "lock") as log, connect_groups(log) as groups:
        return await described(groups)


async def batch_count(log: BrokerLog) -> int:
    """The number of batches in the topic of connect groups."""
    row_id = log.topics[CONNECT_TOPIC.name].partitions[0].row_id

    def read(store: Store) -> int:
        (found,) = store.database.execute("SELECT COUNT(*) FROM batches WHERE partition = ?", (row_id,)).fetchone()
        return int(found)

    return await log.run_write(read)


async def test_compaction_check_and_backup_keep_connect_groups(tmp_path: Path) -> None:
    folder, copy = tmp_path / "broker", tmp_path / "copy"
    async with open_log(folder / "log", folder / "lock") as log, connect_groups(log) as groups:
        await beat(groups, "w0")
        await beat(groups, "w1")
        for number in range(UPDATES):
            await beat(groups, "w1", draining=number % 2 == 0)
        await beat(groups, "w1", -1)
        written = await batch_count(log)
        assert written > UPDATES
    before = await loaded(folder)
    assert [one.metadata.member_id for one in before.members] == ["w0"]

    async with open_log(folder / "log", folder / "lock") as log, asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        keeping = tasks.create_task(run_maintenance(log, folder / "log", FREQUENT_MAINTENANCE, now_ms=wall_clock_ms))
        for _ in count():
            if await batch_count(log) < UPDATES // 10:
                break
            await asyncio.sleep(0.01)
        keeping.cancel()
    assert await loaded(folder) == before

    assert list(log_file_findings(folder / "log", report_progress=lambda _: None)) == []
    back_up_log_and_return_size(
        folder / "log", copy / "log", copy / "lock", force=False, report_progress=lambda _: None
    )
    assert await loaded(copy) == before
