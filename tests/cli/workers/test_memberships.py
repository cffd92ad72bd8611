"""The settings of a worker's membership that do not come from its settings file."""

import asyncio

import pytest

from coterie.cli.workers import memberships
from coterie.config.worker import WorkerSettings
from coterie.member.classic.state import MemberSettings
from coterie.member.connect.messages import GroupDescriptionRequest
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, WorkerUrl


async def test_the_search_for_a_connect_groups_coordinator_does_not_depend_on_the_workers_session_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that does not respond must not cost the worker a session that is shorter than its own setting."""
    monkeypatch.setattr(memberships, "CONNECT_OPEN_TIMEOUT_MS", 200)
    is_over = asyncio.Event()

    async def accept_silently(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    async with await asyncio.start_server(accept_silently, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        needed = {f"{what}.storage.topic": what for what in ("config", "offset", "status")}
        settings = WorkerSettings.from_properties(
            {
                **needed,
                "bootstrap.servers": f"127.0.0.1:{port}",
                "group.id": "g",
                "group.protocol": "connect",
                "checkpoint.location": "/c",
                "session.timeout.ms": "300000",
            }
        )
        member = MemberSettings(
            group_id=GroupId("g"), url=WorkerUrl("http://w:8083/"), session_timeout_ms=settings.session_timeout_ms
        )
        spec = memberships.MembershipSpec(worker_settings=settings, member_settings=member, client_id="w")
        coordinator = memberships.make_connect_coordinator_client(spec)
        with pytest.raises(WorldError, match=r"did not respond within 0\.2 s"):
            await coordinator.ask(GroupDescriptionRequest(group_id=GroupId("g"), response_timeout_ms=60_000))
        await coordinator.close()
        is_over.set()
