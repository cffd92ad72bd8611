"""`coterie broker check` and `coterie broker backup`, called like an operator does."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from typer.testing import CliRunner

from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import open_log
from coterie.cli.app import app
from coterie.wire.batches import NewRecord, encode_batch, read_batch_header


def write_one_batch(data: Path) -> BrokerSettings:
    settings = BrokerSettings(data_path=data)

    async def write() -> None:
        async with open_log(settings.log_path, settings.lock_path) as log:
            partition = (await log.create_topic("t", 1, {})).partitions[0]
            batch = encode_batch([NewRecord(key=None, value=b"x")], timestamp_ms=5)
            await log.append(partition, [(batch, read_batch_header(batch))])

    asyncio.run(write())
    return settings


def test_a_check_of_a_valid_folder_reports_no_errors(tmp_path: Path) -> None:
    write_one_batch(tmp_path / "data")
    result = CliRunner().invoke(app, ["broker", "check", str(tmp_path / "data")])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/data/log.sqlite: no errors found\n")


def test_a_check_prints_one_line_per_finding_and_exits_with_1(tmp_path: Path) -> None:
    with closing(sqlite3.connect(write_one_batch(tmp_path / "data").log_path)) as database:
        database.execute("UPDATE batches SET data = zeroblob(70)")
        database.execute("DELETE FROM numbers")
        database.commit()
    result = CliRunner().invoke(app, ["broker", "check", str(tmp_path / "data")])
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == "the log has no cluster id"
    assert second.startswith("t-0: the batch at offset 0 is corrupt: ")
    assert "2 findings" in result.stderr


def test_a_backup_is_valid_and_is_overwritten_only_with_force(tmp_path: Path) -> None:
    write_one_batch(tmp_path / "data")
    arguments = ["broker", "backup", str(tmp_path / "data"), str(tmp_path / "copy")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, ["broker", "check", str(tmp_path / "copy")]).exit_code == 0
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 1
    assert "--force" in str(refused.exception)
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0
