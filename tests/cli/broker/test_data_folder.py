"""`coterie broker check` and `coterie broker backup`, as an operator calls them."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from typer.testing import CliRunner

from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import open_log
from coterie.cli.app import app
from coterie.wire.batches import NewRecord, encode_batch, read_head


def written(data: Path) -> BrokerSettings:
    settings = BrokerSettings(data_path=data)

    async def write() -> None:
        async with open_log(settings.log_path, settings.lock_path) as log:
            partition = (await log.create_topic("t", 1, {})).partitions[0]
            batch = encode_batch([NewRecord(key=None, value=b"x")], timestamp_ms=5)
            await log.append(partition, [(batch, read_head(batch))])

    asyncio.run(write())
    return settings


def test_a_sound_folder_is_said_to_be_one(tmp_path: Path) -> None:
    written(tmp_path / "data")
    result = CliRunner().invoke(app, ["broker", "check", str(tmp_path / "data")])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/data/log.sqlite: no errors found\n")


def test_each_finding_is_a_line_and_the_exit_code_is_1(tmp_path: Path) -> None:
    with closing(sqlite3.connect(written(tmp_path / "data").log_path)) as database:
        database.execute("UPDATE batches SET data = zeroblob(70)")
        database.execute("DELETE FROM numbers")
        database.commit()
    result = CliRunner().invoke(app, ["broker", "check", str(tmp_path / "data")])
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first == "the cluster has no id"
    assert second.startswith("t-0: the batch at offset 0 is corrupt: ")
    assert "2 findings" in result.stderr


def test_a_copy_is_sound_and_not_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "data")
    words = ["broker", "backup", str(tmp_path / "data"), str(tmp_path / "copy")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, ["broker", "check", str(tmp_path / "copy")]).exit_code == 0
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1
    assert "--force" in str(refused.exception)
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0
