"""Parsed responses of ``GET /coterie/group`` (`docs/rest.md`), from a worker or from a file, and of other requests."""

from collections.abc import Set
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs

T = TypeVar("T")


class Shown(BaseModel):
    # Unknown fields of newer workers are kept, so that `--json` prints them.
    model_config = ConfigDict(frozen=True, extra="allow")


class ShownTask(Shown):
    connector: ConnectorName
    task: int = Field(ge=0)


class ShownJobs(Shown):
    connectors: tuple[ConnectorName, ...]
    tasks: tuple[ShownTask, ...]

    @property
    def jobs(self) -> Jobs:
        tasks = (ConnectorTaskId(task.connector, task.task) for task in self.tasks)
        return Jobs(frozenset(self.connectors), frozenset(tasks))

    def __len__(self) -> int:
        return len(self.connectors) + len(self.tasks)


class Called(Shown):
    name: str
    worker_id: str
    url: str
    instance_id: InstanceId | None


class ShownMember(Called):
    member_id: MemberId
    state: str
    draining: bool
    drain_waits: str | None
    claims: ShownJobs | None
    owned: ShownJobs
    revoked: ShownJobs
    phases: dict[str, int] | None
    life: str | None


class ShownDeferred(Shown):
    worker: str | None
    instance_id: InstanceId | None
    left_ms: int = Field(ge=0)
    jobs: ShownJobs


class ShownUnassigned(Shown):
    connector: ConnectorName
    task: int | None
    reason: str


class ShownPolicy(Shown):
    max_delay_ms: int = Field(alias="scheduled.rebalance.max.delay.ms", ge=0)
    moves_per_round_max: int | None = Field(alias="rebalance.max.moves.per.round", ge=1)
    round_interval_ms: int = Field(alias="rebalance.round.interval.ms", ge=0)


class ShownGroup(Shown):
    protocol: str
    generation: int
    leader: Called | None
    policy: ShownPolicy
    configured: ShownJobs
    members: tuple[ShownMember, ...]
    deferred: tuple[ShownDeferred, ...]
    unassigned: tuple[ShownUnassigned, ...]

    def is_led_by(self, member: ShownMember) -> bool:
        return self.leader is not None and self.leader.worker_id == member.worker_id


class OrderAnswer(Shown):
    """The response of a worker that has accepted an order."""

    worker_id: str
    name: str
    life: str


class _State(Shown):
    state: str


class _Status(Shown):
    connector: _State


class _Expanded(Shown):
    status: _Status


def read_group(data: str | bytes, *, source: str) -> ShownGroup:
    """Parse the description of a group from JSON.

    :raises WorldError: when ``data`` is not a valid description; names ``source``, the error and its position.
    """
    hint = " Save one with `curl http://WORKER/coterie/group > FILE`."
    return _read(TypeAdapter(ShownGroup), data, otherwise=f"{source} is not a valid group description", hint=hint)


def read_order_answer(data: bytes, *, source: str) -> OrderAnswer:
    """:raises WorldError: when ``data`` is not a worker's response to an order."""
    return _read(TypeAdapter(OrderAnswer), data, otherwise=f"{source} is not from a Coterie worker")


def read_paused(data: bytes, *, source: str) -> Set[str]:
    """The connectors that are paused or stopped, from a response of ``GET /connectors?expand=status``.

    :raises WorldError: when ``data`` is not such a response.
    """
    statuses = _read(TypeAdapter(dict[str, _Expanded]), data, otherwise=f"{source} is not a valid list of connectors")
    return {name for name, one in statuses.items() if one.status.connector.state in {"PAUSED", "STOPPED"}}


def _read(kind: TypeAdapter[T], data: str | bytes, *, otherwise: str, hint: str = "") -> T:
    """Parse JSON ``data`` as ``kind``.

    :raises WorldError: when it is not of ``kind``; the message is ``otherwise``, the error's position, the error and
        ``hint``.
    """
    try:
        return kind.validate_json(data)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"]))
        raise WorldError(f"{otherwise}{f', at {where}' if where else ''}: {detail['msg']}.{hint}") from error
