"""Loads of groups from the broker's log that wait until the test lets them begin."""

import asyncio
import threading
from typing import Any

import pytest

from coterie.broker.groups.log import GroupLog
from coterie.nouns.ids import GroupId
from tests.broker.conftest import DEADLINE_S


def hold_group_loads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let each load of one group from the log wait until the returned event is set."""
    may_load, load = threading.Event(), GroupLog.load

    async def load_later(log: GroupLog[Any], group_id: GroupId) -> Any:
        await asyncio.to_thread(may_load.wait, DEADLINE_S)
        return await load(log, group_id)

    monkeypatch.setattr(GroupLog, "load", load_later)
    return may_load
