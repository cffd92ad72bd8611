"""The checks of requests that do not depend on the other members (K848C, "Request Validation")."""

from coterie.groups.connect.messages import CheckOffsetAccess, Heartbeat, InstallAssignment, PrepareAssignment
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.state import Group
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, LEAVE_BRIEFLY_EPOCH, SupportedAssignor
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs

ASSIGNORS_MAX = 16
"""The maximum number of assignors of one member: each is stored with the member."""
METADATA_SIZE_MAX = 64 * 1024
"""The maximum size in bytes of a member's ids, URL and name, and of the names and metadata of all its assignors,
together."""
CLAIMS_MAX = 10_000
"""The maximum number of jobs that one member claims: they are stored with the member, and each computing member
receives those of all members."""
CLAIM_NAMES_LENGTH_MAX = 1024 * 1024
"""The maximum number of characters in the names of all jobs that one member claims."""


def check_heartbeat(group: Group, request: Heartbeat) -> None:
    """Check the fields of a heartbeat.

    :raises ConnectRefusal: INVALID_REQUEST, for a field with an invalid value or above its size limit, for assignors of
        both kinds, or for a join without a required field or with owned jobs.
    """
    # A message is built only for a refusal: building all of them takes as long as all other checks together.
    if not group.group_id:
        raise _invalid_request_refusal("the heartbeat has an empty group id: set group.id of the worker")
    if not request.member_id:
        raise _invalid_request_refusal(
            "the heartbeat has an empty member id: a worker creates its own id when its process starts"
        )
    if request.member_epoch < LEAVE_BRIEFLY_EPOCH:
        raise _invalid_request_refusal(
            f"the heartbeat has the member epoch {request.member_epoch}; the lowest valid one is -2"
        )
    if request.request_number < 0:
        raise _invalid_request_refusal(
            f"the heartbeat has the request number {request.request_number}; it must not be below 0"
        )
    if request.max_wait_ms < 0:
        raise _invalid_request_refusal(f"the heartbeat has MaxWaitMs {request.max_wait_ms}; it must not be below 0")
    if request.instance_id == "":
        raise _invalid_request_refusal(
            "the heartbeat has an empty instance id: set group.instance.id of the worker, or remove it"
        )
    timeout_ms = request.rebalance_timeout_ms
    if timeout_ms is not None and timeout_ms <= 0:
        raise _invalid_request_refusal(f"the heartbeat has RebalanceTimeoutMs {timeout_ms}; it must be above 0")
    texts = (request.member_id, request.client_id, request.instance_id, request.url, request.name)
    size = sum(len((text or "").encode()) for text in texts)
    if request.client_assignors:
        _require(
            request.server_assignor is None,
            "the heartbeat has both ServerAssignor and ClientAssignors; only one is allowed",
        )
        _check_assignors(request.client_assignors)
        size += sum(len(assignor.metadata) + len(assignor.name.encode()) for assignor in request.client_assignors)
    if size > METADATA_SIZE_MAX:
        raise _invalid_request_refusal(
            f"the worker's ids, URL and name, and the names and metadata of its assignors, have {size} bytes together; "
            f"at most {METADATA_SIZE_MAX} are allowed"
        )
    if request.claims is not None and request.claims.jobs:
        _check_claims(request.claims.jobs)
    if request.member_epoch == JOIN_EPOCH:
        _require(timeout_ms is not None, "a join needs RebalanceTimeoutMs")
        _require(request.owned is not None, "a join needs ConnectorsAndTasks")
        _require(not request.owned, "a worker that joins owns no jobs: it must stop all jobs first")


def _check_claims(jobs: Jobs) -> None:
    """Check the jobs that a member claims.

    :raises ConnectRefusal: INVALID_REQUEST, for too many jobs, or too long names.
    """
    remedy = "set fewer in static.connectors and static.tasks of the worker"
    _require(len(jobs) <= CLAIMS_MAX, f"{len(jobs)} jobs are claimed; at most {CLAIMS_MAX} are allowed: {remedy}")
    size = sum(map(len, jobs.connectors)) + sum(len(task.connector) for task in jobs.tasks)
    _require(
        size <= CLAIM_NAMES_LENGTH_MAX,
        f"the names in the claimed jobs have {size} characters; at most {CLAIM_NAMES_LENGTH_MAX} are allowed: {remedy}",
    )


def _check_assignors(assignors: tuple[SupportedAssignor, ...]) -> None:
    """Check the assignors of a heartbeat.

    :raises ConnectRefusal: INVALID_REQUEST, for too many assignors, a repeated or empty name, or invalid versions.
    """
    _require(
        len(assignors) <= ASSIGNORS_MAX, f"{len(assignors)} assignors are listed; at most {ASSIGNORS_MAX} are allowed"
    )
    _require(len({one.name for one in assignors}) == len(assignors), "an assignor is listed twice")
    for one in assignors:
        _require(bool(one.name), "the name of an assignor is empty")
        _require(one.minimum_version >= -1, f"assignor {one.name}: MinimumVersion {one.minimum_version} is below -1")
        _require(
            one.maximum_version >= max(0, one.minimum_version),
            f"assignor {one.name}: MaximumVersion {one.maximum_version} is below 0 or below MinimumVersion",
        )
        _require(
            one.minimum_version <= one.version <= one.maximum_version,
            f"assignor {one.name}: Version {one.version} is not between MinimumVersion and MaximumVersion",
        )


def check_computing_request(group: Group, request: PrepareAssignment | InstallAssignment) -> None:
    """Check the group, the member and the epochs of a request that the computing member sends.

    :raises ConnectRefusal: INVALID_REQUEST, for an empty id or a negative member epoch; GROUP_ID_NOT_FOUND;
        UNKNOWN_MEMBER_ID, when the sender is not in the group; FENCED_MEMBER_EPOCH, when it has another member epoch.
    """
    _require(bool(group.group_id), "the request has an empty group id")
    _require(bool(request.member_id), "the request has an empty member id")
    _require(request.member_epoch >= 0, f"the request has the member epoch {request.member_epoch}, which is below 0")
    if group.metadata is None:
        raise ConnectRefusal(ConnectErrorCode.GROUP_ID_NOT_FOUND, f"there is no connect group {group.group_id}")
    check_member(group, request.member_id)
    epoch = group.currents[request.member_id].member_epoch
    if request.member_epoch != epoch:
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_MEMBER_EPOCH,
            f"the request has the member epoch {request.member_epoch}, and member {request.member_id} has {epoch}; the "
            "request must be sent again with the present member epoch",
        )


def check_member(group: Group, member_id: MemberId) -> None:
    """Check that the member is in the group.

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, when it is not.
    """
    if member_id not in group.members:
        departed = group.departed.get(member_id)
        why = f" any more: {departed.reason}" if departed is not None and departed.reason else ""
        raise ConnectRefusal(
            ConnectErrorCode.UNKNOWN_MEMBER_ID,
            f"member {member_id} is not in group {group.group_id}{why}; a worker with this member id must stop its "
            "jobs and join with the epoch 0",
        )


def check_offset_request(group: Group, request: CheckOffsetAccess) -> None:
    """Check that the sender may commit or fetch offsets: a member with its member epoch; or a client that is not a
    member, for a commit only while the group has no members (KIP-848).

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, when the sender is neither; STALE_MEMBER_EPOCH, when the member has
        another member epoch.
    """
    if request.member_epoch < JOIN_EPOCH and not (group.members if request.is_commit else request.member_id):
        return
    check_member(group, request.member_id)
    epoch = group.currents[request.member_id].member_epoch
    if request.member_epoch != epoch:
        raise ConnectRefusal(
            ConnectErrorCode.STALE_MEMBER_EPOCH,
            f"the request has the member epoch {request.member_epoch}, and member {request.member_id} has {epoch}; the "
            "request must be sent again with the present member epoch",
        )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise _invalid_request_refusal(message)


def _invalid_request_refusal(message: str) -> ConnectRefusal:
    return ConnectRefusal(ConnectErrorCode.INVALID_REQUEST, message)
