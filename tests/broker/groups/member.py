"""A member of a classic group over TCP, in chosen versions of the four APIs."""

from typing import Any

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import RawClient

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


class Member:
    """A member of a classic group that uses chosen versions."""

    def __init__(self, client: RawClient, *, join: int = 9, sync: int = 5, beat: int = 4, leave: int = 5) -> None:
        self.client = client
        self.versions = {JOIN: join, SYNC: sync, HEARTBEAT: beat, LEAVE: leave}
        self.member_id = ""
        self.generation = -1
        self.joined: Any = None

    def ask(self, api: int, **values: Any) -> Any:
        return self.client.ask(api, self.versions[api], **values)

    def join(self) -> Any:
        """Join the group; the first JoinGroup of newer versions only returns a member id."""
        while True:
            self.joined = self.ask(
                JOIN,
                group_id="g",
                session_timeout=6000,
                rebalance_timeout=6000,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="connect",
                protocols=[{"name": "default", "metadata": b"mine"}],
                reason=None,
            )
            self.member_id = self.joined.member_id
            if self.joined.error_code is not ErrorCode.member_id_required:
                self.generation = self.joined.generation_id
                return self.joined

    def sync(self, *assignments: tuple[str, bytes]) -> Any:
        return self.ask(
            SYNC,
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="connect",
            protocol_name="default",
            assignments=[{"member_id": member_id, "assignment": data} for member_id, data in assignments],
        )

    def beat(self) -> ErrorCode:
        answer = self.ask(
            HEARTBEAT,
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
        )
        error: ErrorCode = answer.error_code
        return error

    def leave(self) -> Any:
        return self.ask(
            LEAVE,
            group_id="g",
            member_id=self.member_id,
            members=[{"member_id": self.member_id, "group_instance_id": None, "reason": None}],
        )
