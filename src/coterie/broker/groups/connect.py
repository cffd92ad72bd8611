"""Connect groups in this broker: the machine that group hosts run, the topic with its records, and the computation of
target assignments by the assignors that the broker was given."""

import asyncio
import logging
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

from coterie.broker.groups.connect_log import log_member_removals_and_computation_errors
from coterie.broker.groups.connect_stats import ConnectGroupStats
from coterie.broker.groups.heartbeats import MemberRequestGaps
from coterie.broker.groups.host import Observe, RunChore
from coterie.broker.groups.log import GroupTopicFormat
from coterie.broker.groups.registry import Groups
from coterie.engine.output import Output, StepOutput
from coterie.groups import effects
from coterie.groups.connect import machine, state
from coterie.groups.connect.log_records import decode_record, encode_record
from coterie.groups.connect.messages import (
    ComputeTarget,
    Event,
    GroupLoaded,
    Heartbeat,
    Notification,
    Record,
    Request,
    Response,
    SetGroupConfigs,
    TargetComputed,
    TimerKey,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group
from coterie.groups.connect.summary import summarize_event
from coterie.groups.connect.target_check import ERROR_LENGTH_MAX
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.errors import CoterieError
from coterie.nouns.ids import GroupId
from coterie.nouns.target_assignments import AssignFunction, GroupSnapshot
from coterie.nouns.text import without_lone_surrogates
from coterie.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CONNECT_TOPIC: GroupTopicFormat[Record] = GroupTopicFormat(
    name="__worker_offsets", encode_record=encode_record, decode_record=decode_record
)
"""The topic with the records of connect groups (K848C, "Records")."""

_REFUSAL_MESSAGES = {
    ErrorCode.policy_violation: "the broker has its maximum number of connect groups; delete groups that are not used",
    ErrorCode.not_coordinator: (
        "this broker is stopping, or loads the group again after a failure that is in its log; send the request again"
    ),
    ErrorCode.coordinator_load_in_progress: "the group is being loaded from the broker's log; send the request again",
}
"""The error message of a refused request, by error code."""
_Effect: TypeAlias = effects.Effect[Response, TimerKey] | RunChore[Notification] | Observe


class ConnectMachine:
    """The machine of connect groups, as group hosts run it (:class:`GroupMachine`). It also records when members send
    heartbeats, in ``gaps``, and counts what the steps do, in ``stats``. A group that has only configs has state, but
    does not reserve its id: a classic group may use the id."""

    refusal_code_or_wait_while_loading = ErrorCode.coordinator_load_in_progress
    """The error for requests during a load: a request that waited would delay all later requests on its connection."""
    apply = staticmethod(state.apply_record)
    event_summary = staticmethod(summarize_event)

    def __init__(
        self, settings: ConnectGroupSettings, assignors: Mapping[str, AssignFunction], gaps: MemberRequestGaps
    ) -> None:
        """``assignors`` are the broker's assignors by name: those of ``settings.server_assignors``."""
        self._settings = settings
        self._assignors = assignors
        self._gaps = gaps
        self.stats = ConnectGroupStats()

    def new_group(self, group_id: GroupId, /) -> Group:
        return Group(group_id, self._settings)

    def step(self, group: Group, event: Event, /, *, now_ms: int) -> StepOutput[Record, _Effect]:
        before = group.metadata
        output = machine.step(group, event, now_ms=now_ms)
        performed = tuple(
            self._make_computation_chore(group, one) if isinstance(one, ComputeTarget) else one
            for one in output.effects
        )
        if not output.records:
            return Output(effects=performed)

        def observe_step() -> None:
            self.stats.observe_step(group.group_id, event, output.records, before, now_ms)
            log_member_removals_and_computation_errors(group.group_id, event, output, before)

        return Output(records=output.records, effects=(Observe(observe=observe_step), *performed))

    def _make_computation_chore(self, group: Group, order: ComputeTarget) -> RunChore[Notification]:
        """The chore that computes the target assignment for ``order``, an effect of the machine."""
        return RunChore(run=partial(self._compute_target, group.group_id, order.snapshot))

    def refusal_response(self, request: Request, error: ErrorCode, /) -> Response:
        return machine.refusal_response(request, ConnectErrorCode(error), _REFUSAL_MESSAGES.get(error))

    def may_create_group(self, request: Request, /) -> bool:
        match request:
            case Heartbeat(member_epoch=epoch):
                return epoch == JOIN_EPOCH
            case SetGroupConfigs(configs=configs):
                return bool(configs)
            case _:
                return False

    def has_state(self, group: Group, /) -> bool:
        return not group.is_nonexistent

    def reserves_group_id(self, group: Group, /) -> bool:
        return group.metadata is not None

    def notifications_after_load(self, records: Sequence[Record], /) -> Sequence[Notification]:
        return [GroupLoaded()]

    def observe_request(self, group: Group, request: Request, /) -> None:
        """Record ``request`` in the statistics if it is a heartbeat of a member of the group."""
        if isinstance(request, Heartbeat) and request.member_id in group.members:
            self._gaps.observe_request(group.group_id, request.member_id, is_heartbeat=True)

    def observe_response(self, group: Group, request: Request, response: Response, /) -> None:
        """Count ``response`` in the statistics if it is a refusal."""
        self.stats.observe_response(response)

    # -- computations -------------------------------------------------------------------------------------------------

    async def _compute_target(self, group_id: GroupId, snapshot: GroupSnapshot) -> Notification:
        """Let the assignor of ``snapshot`` compute a target, within the snapshot's time limit. Returns the notification
        with the target or, if the assignor fails, with the error: the coordinator then keeps the present targets, and
        tries again."""
        assign = self._assignors.get(snapshot.assignor)
        if assign is None:
            known = ", ".join(sorted(self._assignors)) or "none"
            error = f"the broker has no assignor {snapshot.assignor} (group.connect.assignors); it has: {known}"
            return TargetComputed(group_epoch=snapshot.group_epoch, target=None, assignor_error=error)
        try:
            async with asyncio.timeout(snapshot.time_limit_ms / 1000) as time_limit:
                target = await assign(snapshot)
            return TargetComputed(group_epoch=snapshot.group_epoch, target=target)
        except asyncio.CancelledError:
            serving = asyncio.current_task()
            if serving is not None and serving.cancelling():
                raise  # the group has ended
            error = "the computation of the target was cancelled"
        except Exception as failure:
            if time_limit.expired():
                error = f"no target was computed within {snapshot.time_limit_ms} ms"
            else:
                # An assignor may be a plug-in, and may raise any exception, for example a TimeoutError.
                logger.exception(
                    "Group %s: the assignor %s could not compute the assignments, which stay as they are; will retry",
                    group_id,
                    snapshot.assignor,
                )
                # str() of a plug-in's exception may itself raise an exception.
                text = "".join(traceback.format_exception_only(failure)).strip()
                error = str(failure) if isinstance(failure, CoterieError) else text
        error = without_lone_surrogates(error[:ERROR_LENGTH_MAX])  # the error is stored with the group
        return TargetComputed(group_epoch=snapshot.group_epoch, target=None, assignor_error=error)


ConnectGroups: TypeAlias = Groups[Group, Request, Notification, Record, Response, TimerKey]
