"""Without static workers and drains a `static` group moves exactly as a `sessioned` one, which ignores both.

The leader receives its members' metadata through the bytes of its protocol. Its assignments are compared with those of
a reference without static workers and drains: every worker may run every job, and jobs are revoked only because they
are deleted, duplicate, or above a balanced share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.assignor_state import (
    AssignorState,
    MemberOutcome,
    choose_kept_jobs_and_duplicates,
    former_jobs_of_static_members,
    union_of_jobs,
    usable_state,
)
from coterie.assignors.cooperative import assign
from coterie.assignors.delay import current_deferrals, next_possibly_returned_members, tie_break_order
from coterie.assignors.job_selection import jobs_to_receive_and_release
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason, limit_revocations
from coterie.herder.rounds.leading import member_spec_of_report
from coterie.member.classic.connect_translation import to_member_report
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_version_and_metadata, encode_metadata

NAMES = [ConnectorName(name) for name in "abc"]
JOBS: list[Job] = [*NAMES, *(ConnectorTaskId(name, number) for name in NAMES for number in range(4))]
SETS = st.sets(st.sampled_from(JOBS)).map(Jobs.of)
CLAIMS = st.one_of(st.none(), st.sets(st.sampled_from(JOBS), max_size=4).map(Jobs.of))
IDS = [MemberId(f"m{number}") for number in range(5)]
URL = WorkerUrl("http://h:8083/")
Steps: TypeAlias = list[tuple[set[MemberId], int, Jobs | None, bool]]
STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(IDS), min_size=1),  # the members
        st.sampled_from([0, 10, 100, 300]),  # milliseconds since the previous step
        st.one_of(st.none(), st.none(), SETS),  # the configured jobs, if they change
        st.booleans(),  # whether the assignments are delivered
    ),
    max_size=8,
)


def reference_assign(
    state: AssignorState,
    configured: Jobs,
    members: Mapping[MemberId, MemberSpec],
    generation: GenerationId,
    completed: GenerationId,
    now_ms: int,
    policy: RebalancePolicy,
) -> tuple[AssignorState, Mapping[MemberId, MemberOutcome], int]:
    """The reference: the leader's new state, the assignments, and the delay."""
    trusted = usable_state(state, members, generation=generation, last_completed_generation=completed)
    configured_only = {member: view.owned & configured for member, view in members.items()}
    owned, duplicates = choose_kept_jobs_and_duplicates(configured_only, trusted, lambda member, job: True)
    unaccounted = configured - union_of_jobs(owned.values())
    returned = former_jobs_of_static_members(trusted, unaccounted, members, lambda member, jobs: jobs)
    runs = {member: jobs | returned.get(member, NO_JOBS) for member, jobs in owned.items()}
    lost = unaccounted - union_of_jobs(returned.values())
    deferrals = current_deferrals(
        trusted, lost, members, now_ms=now_ms, max_delay_ms=policy.max_delay_ms, received_delay_ms=0
    )
    candidates = trusted.possibly_returned_members
    if deferrals:
        arrived = [member for member in sorted(members) if not runs[member] and member not in trusted.outcome_by_member]
        candidates = next_possibly_returned_members(candidates, arrived, members)
    gone = [held for member, held in trusted.outcome_by_member.items() if member not in members]
    moved = (trusted.jobs_moved_before | union_of_jobs(held.owned_after for held in gone)) & configured
    free = lost - union_of_jobs(one.jobs for one in deferrals)
    given, surplus = jobs_to_receive_and_release(
        runs, to_assign=lost, assignable_now=free, moved_before=moved, order=tie_break_order(candidates, members.keys())
    )
    surplus = {} if deferrals else {member: jobs & members[member].owned for member, jobs in surplus.items()}
    _, released = limit_revocations(
        {}, surplus, policy=policy, now_ms=now_ms, moves_allowed_at_ms=trusted.moves_allowed_at_ms
    )
    sent = {}
    for member, view in members.items():
        reasons = {
            RevocationReason.DELETED: view.owned - configured,
            RevocationReason.DUPLICATE: duplicates.get(member, NO_JOBS),
            RevocationReason.BALANCE: released.get(member, NO_JOBS),
        }
        assigned = returned.get(member, NO_JOBS) | given.get(member, NO_JOBS)
        revoked = union_of_jobs(reasons.values())
        sent[member] = MemberOutcome(
            kept=view.owned - revoked,
            assigned=assigned,
            revoked_by_reason={why: jobs for why, jobs in reasons.items() if jobs},
            instance_id=view.instance_id,
        )
    new_state = AssignorState(
        generation=generation,
        outcome_by_member=sent,
        deferrals=deferrals,
        possibly_returned_members=candidates if deferrals else (),
        jobs_moved_before=moved | (union_of_jobs(one.revoked for one in sent.values()) & configured),
        moves_allowed_at_ms=now_ms + policy.round_interval_ms
        if any(released.values())
        else trusted.moves_allowed_at_ms,
    )
    return new_state, sent, deferrals[0].deadline_ms - now_ms if deferrals else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings:
    """The part of a member's metadata that only the protocol `static` contains."""

    claims: Jobs | None = None
    draining: bool = False


NO_STATIC_SETTINGS = StaticSettings()


def instance_id_of(member: MemberId) -> InstanceId | None:
    return InstanceId(member) if member < "m2" else None


def spec_after_encoding(
    member: MemberId, runs: Jobs | None, protocol: ConnectProtocol, static_setting: StaticSettings
) -> MemberSpec:
    """``member`` as the leader receives it: encoded in the bytes of ``protocol`` and decoded."""
    allocation = None
    if runs is not None:
        allocation = WorkerAssignment(leader=IDS[0], leader_url=URL, config_offset=ConfigOffset(1), assigned=runs)
    sent = WorkerMetadata(
        url=URL,
        config_offset=ConfigOffset(1),
        allocation=allocation,
        static_connectors=None if static_setting.claims is None else static_setting.claims.connectors,
        static_tasks=None if static_setting.claims is None else static_setting.claims.tasks,
        draining=static_setting.draining,
    )
    return member_spec_of_report(
        to_member_report(
            decode_version_and_metadata(encode_metadata(protocol, sent))[1], instance_id_of(member), protocol
        )
    )


def run_history(
    protocol: ConnectProtocol,
    static_settings: Mapping[MemberId, StaticSettings],
    policy: RebalancePolicy,
    configured: Jobs,
    steps: Steps,
) -> None:
    state = AssignorState()
    runs: dict[MemberId, Jobs] = {}
    now_ms, completed = 0, GenerationId(-1)
    for number, (members, later_ms, now_configured, arrives) in enumerate(steps, start=1):
        now_ms += later_ms
        configured = now_configured or configured
        generation = GenerationId(number)
        views = {
            member: spec_after_encoding(member, runs.get(member), protocol, static_settings[member])
            for member in members
        }
        plain = {
            member: MemberSpec(owned=runs.get(member, NO_JOBS), instance_id=instance_id_of(member))
            for member in members
        }
        expected = reference_assign(state, configured, plain, generation, completed, now_ms, policy)
        outcome = assign(
            state,
            configured=configured,
            members=views,
            generation=generation,
            last_completed_generation=completed,
            now_ms=now_ms,
            policy=policy,
        )
        assert (outcome.assignor_state, outcome.assignments, outcome.delay_ms) == expected
        state = outcome.assignor_state
        if arrives:
            completed = generation
            runs = {member: one.owned_after for member, one in outcome.assignments.items()}


POLICIES = st.sampled_from(
    [RebalancePolicy(max_delay_ms=300), RebalancePolicy(max_delay_ms=0), RebalancePolicy(moves_per_round_max=2)]
)
STATIC_SETTINGS = st.lists(
    st.builds(StaticSettings, claims=CLAIMS, draining=st.booleans()), min_size=len(IDS), max_size=len(IDS)
)


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES)
def test_without_static_workers_and_drains_a_static_group_assigns_as_a_sessioned_one(
    configured: Jobs, steps: Steps, policy: RebalancePolicy
) -> None:
    run_history(ConnectProtocol.STATIC, dict.fromkeys(IDS, NO_STATIC_SETTINGS), policy, configured, steps)


@settings(max_examples=100)
@given(configured=SETS, steps=STEPS, policy=POLICIES, static_settings=STATIC_SETTINGS)
def test_claims_and_drains_are_ignored_unless_all_members_support_static(
    configured: Jobs, steps: Steps, policy: RebalancePolicy, static_settings: list[StaticSettings]
) -> None:
    """One older worker is enough: the group then selects an older protocol, whose bytes contain neither."""
    run_history(ConnectProtocol.SESSIONED, dict(zip(IDS, static_settings, strict=True)), policy, configured, steps)
