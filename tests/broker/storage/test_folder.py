"""A new folder for a broker's data is not accessible to other users; an existing folder keeps its mode."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.broker.maintenance.backup import back_up_log_and_return_size
from coterie.broker.security.users import BrokerUsersFile
from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings


def started(data: Path) -> None:
    async def start() -> None:
        async with running_broker(BrokerSettings(data_path=data)):
            pass

    asyncio.run(start())


def user_added(data: Path) -> None:
    BrokerUsersFile(BrokerSettings(data_path=data).users_path).add("alice", "a password")


def backed_up_to(data: Path) -> None:
    source, target = (BrokerSettings(data_path=path) for path in (data.parent / "source", data))
    started(source.data_path)
    back_up_log_and_return_size(
        source.log_path, target.log_path, target.lock_path, force=False, report_progress=lambda _: None
    )


MAKERS = pytest.mark.parametrize("use", [started, user_added, backed_up_to])


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@MAKERS
def test_other_users_cannot_access_a_new_folder(tmp_path: Path, use: Callable[[Path], None]) -> None:
    parent = tmp_path / "parent"
    use(parent / "data")
    assert mode(parent / "data") == 0o700
    assert mode(parent) != 0o700, "the mode of the parent folder must not change"


@MAKERS
def test_an_existing_folder_keeps_its_mode(tmp_path: Path, use: Callable[[Path], None]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o750)
    use(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o750
