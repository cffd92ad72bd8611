"""Who makes a folder for a broker's data keeps others out of it, and leaves one that is there alone."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.broker.security.users import Users
from coterie.broker.server import running
from coterie.broker.settings import BrokerSettings
from coterie.broker.upkeep.backup import back_up


def started(data: Path) -> None:
    async def start() -> None:
        async with running(BrokerSettings(data_path=data)):
            pass

    asyncio.run(start())


def told_of_a_user(data: Path) -> None:
    Users(BrokerSettings(data_path=data).users_path).add("alice", "a password")


def backed_up_to(data: Path) -> None:
    source, target = (BrokerSettings(data_path=path) for path in (data.parent / "source", data))
    started(source.data_path)
    back_up(source.log_path, target.log_path, target.lock_path, force=False, tell=lambda _: None)


MAKERS = pytest.mark.parametrize("use", [started, told_of_a_user, backed_up_to])


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@MAKERS
def test_nobody_else_may_look_into_a_new_folder(tmp_path: Path, use: Callable[[Path], None]) -> None:
    parent = tmp_path / "parent"
    use(parent / "data")
    assert mode(parent / "data") == 0o700
    assert mode(parent) != 0o700, "only the data is ours"


@MAKERS
def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path, use: Callable[[Path], None]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o750)
    use(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o750
