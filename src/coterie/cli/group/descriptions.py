"""Parsed responses of ``GET /coterie/group`` (`docs/rest.md`), from a worker or from a file, and of other requests."""

from collections.abc import Mapping, Set
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs

T = TypeVar("T")


class ResponseModel(BaseModel):
    """The base class of the models of a worker's JSON responses and their parts."""

    # Unknown fields of newer workers are kept, so that `--json` prints them.
    model_config = ConfigDict(frozen=True, extra="allow")


class DescribedTaskId(ResponseModel):
    """One task: the name of its connector and its number."""

    connector: ConnectorName
    task: int = Field(ge=0)


class JobsDescription(ResponseModel):
    """A set of jobs, as in the response; its length is the number of jobs."""

    connectors: tuple[ConnectorName, ...]
    tasks: tuple[DescribedTaskId, ...]

    @property
    def jobs(self) -> Jobs:
        """The same jobs as :class:`.Jobs`."""
        tasks = (ConnectorTaskId(task.connector, task.task) for task in self.tasks)
        return Jobs(frozenset(self.connectors), frozenset(tasks))

    def __len__(self) -> int:
        return len(self.connectors) + len(self.tasks)


class WorkerIdentity(ResponseModel):
    """The names and addresses of one worker."""

    name: str
    worker_id: str
    """The worker's host:port."""
    url: str
    instance_id: InstanceId | None
    """The worker's ``group.instance.id``; None if it has none."""


class MemberDescription(WorkerIdentity):
    """One worker that is a member of the group. ``life`` is the id of its process, another one after a restart;
    ``phases`` is the number of its tasks in each phase; ``drain_waits`` and ``no_new_jobs`` are reasons, as text. A
    worker that does not respond has the state UNREACHABLE, and None for ``life`` and ``phases``."""

    member_id: MemberId
    state: str
    """The state that the member reports, such as STABLE; UNREACHABLE if the member does not respond."""
    draining: bool
    drain_waits: str | None
    """Why the drain waits; None if the worker does not drain, or its drain does not wait."""
    no_new_jobs: str | None = None
    """Why the worker takes no new jobs until it is restarted; None if it takes them, or does not respond."""
    claims: JobsDescription | None
    """The only jobs that the worker may run (KIP-987); None for a wildcard worker."""
    owned: JobsDescription
    revoked: JobsDescription
    """The jobs that were revoked from the worker: in a classic group by the last round; in a connect group those that
    the worker has not given back yet."""
    phases: dict[str, int] | None
    """The number of tasks in each phase, such as running; None if the worker does not respond."""
    life: str | None
    """The id of the worker's process; another after a restart. None if the worker does not respond."""


class DeferredJobsDescription(ResponseModel):
    """Jobs of a departed worker that wait for its return, for at most ``left_ms`` more. ``worker`` and ``instance_id``
    are also None if it is not known which worker has departed."""

    worker: str | None
    """The departed worker's name; None if it is not known."""
    instance_id: InstanceId | None
    """The departed worker's ``group.instance.id``; None if it has none, or if it is not known."""
    left_ms: int = Field(ge=0)
    """How long the jobs still wait."""
    jobs: JobsDescription


class UnassignedJobDescription(ResponseModel):
    """A job that no worker runs, and the reason."""

    connector: ConnectorName
    task: int | None
    """The task's number; None if the job is the connector itself."""
    reason: str

    @property
    def job(self) -> Job:
        """The job as the connector's name or the task's id (:data:`.Job`)."""
        return self.connector if self.task is None else ConnectorTaskId(self.connector, self.task)


class RebalancePolicyDescription(ResponseModel):
    """The settings that delay or limit the leader's assignments (:class:`.RebalancePolicy`)."""

    max_delay_ms: int = Field(alias="scheduled.rebalance.max.delay.ms", ge=0)
    moves_per_round_max: int | None = Field(alias="rebalance.max.moves.per.round", ge=1)
    round_interval_ms: int = Field(alias="rebalance.round.interval.ms", ge=0)


class GroupDescription(ResponseModel):
    """A group: its leader, policy, members, configured jobs, and the jobs without a worker: those that wait for a
    departed worker (``deferred``), and the others (``unassigned``)."""

    protocol: str
    """``connect`` for a connect group, otherwise the group's protocol as in ``connect.protocol``."""
    assignor: str | None = None
    """The name of the assignor that a connect group uses; None for a classic group."""
    generation: int
    """The generation of a classic group; the group epoch of a connect group."""
    leader: WorkerIdentity | None
    """The leader; None if the response names no member as the leader."""
    policy: RebalancePolicyDescription
    configured: JobsDescription
    members: tuple[MemberDescription, ...]
    deferred: tuple[DeferredJobsDescription, ...]
    unassigned: tuple[UnassignedJobDescription, ...]

    def is_led_by(self, member: MemberDescription) -> bool:
        """Whether ``member`` is the group's leader."""
        return self.leader is not None and self.leader.worker_id == member.worker_id


class OrderResponse(ResponseModel):
    """The response of a worker that has accepted an operator's order, such as to drain or to restart; see
    :class:`MemberDescription` for the fields."""

    worker_id: str
    name: str
    life: str


class _ConnectorState(ResponseModel):
    state: str


class _ConnectorStatus(ResponseModel):
    connector: _ConnectorState


class _ExpandedConnector(ResponseModel):
    status: _ConnectorStatus


def parse_group_description(data: str | bytes, *, source: str) -> GroupDescription:
    """Parse the description of a group from JSON. ``source`` names the origin of ``data`` in the error.

    :raises WorldError: when ``data`` is not a valid description; the message has ``source``, the error's position in
        ``data``, and the error.
    """
    hint = " Save one with `curl http://WORKER/coterie/group > FILE`."
    return _parse_response(
        TypeAdapter(GroupDescription), data, message=f"{source} is not a valid group description", hint=hint
    )


def parse_order_response(data: bytes, *, source: str) -> OrderResponse:
    """Parse the response of the worker that has accepted an operator's order, such as to drain or to restart.
    ``source`` names the origin of ``data`` in the error.

    :raises WorldError: when ``data`` is not such a response.
    """
    return _parse_response(TypeAdapter(OrderResponse), data, message=f"{source} is not from a Coterie worker")


def parse_paused_or_stopped_connectors(data: bytes, *, source: str) -> Set[str]:
    """The names of the connectors that are paused or stopped, from a response of ``GET /connectors?expand=status``.

    :raises WorldError: when ``data`` is not such a response.
    """
    statuses = _parse_response(
        TypeAdapter(dict[str, _ExpandedConnector]), data, message=f"{source} is not a valid list of connectors"
    )
    return {name for name, connector in statuses.items() if connector.status.connector.state in {"PAUSED", "STOPPED"}}


def parse_connector_config_response(data: bytes, *, source: str) -> Mapping[str, str | None]:
    """The config of a connector, from the body ``data`` of a response of ``GET /connectors/{connector}/config``.
    ``source`` describes the response in the error message.

    :raises WorldError: when ``data`` is not the body of such a response.
    """
    return _parse_response(
        TypeAdapter(dict[str, str | None]), data, message=f"{source} is not a valid config of a connector"
    )


def _parse_response(response_type: TypeAdapter[T], data: str | bytes, *, message: str, hint: str = "") -> T:
    """Parse JSON ``data`` as ``response_type``.

    :raises WorldError: when ``data`` is not of ``response_type``; the message is ``message``, the position of the
        error, the error and ``hint``.
    """
    try:
        return response_type.validate_json(data)
    except ValidationError as error:
        first_error = error.errors(include_url=False)[0]
        position = ".".join(map(str, first_error["loc"]))
        raise WorldError(f"{message}{f', at {position}' if position else ''}: {first_error['msg']}.{hint}") from error
