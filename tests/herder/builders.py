"""Builders: a connector with two tasks, and rebalances in which a driven herder takes part or which it leads."""

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.messages import TimerFired
from coterie.herder.requests.writes import DeletedConnector
from coterie.nouns.ids import ConfigOffset, Incarnation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import ComputedAssignments, MemberReport, SendAssignments
from coterie.wire.connect import ConnectProtocol
from tests.herder.herder_driver import ME, ROUND, HerderDriver, assignments_requested

ORDERS = ConnectorName("orders")
TASKS = [ConnectorTaskId(ORDERS, number) for number in range(2)]
INCARNATION = Incarnation("incarnation-0")
CONFIG = {"connector.class": "X", "tasks.max": "2", "name": "orders"}
CONNECTOR_LINE = config_records.connector_line(ORDERS, CONFIG, INCARNATION)
DELETED = DeletedConnector(replaced_config=CONFIG)
"""The response to a deletion of the connector."""
ORDERS_TASK_CONFIGS = [{"share": "0/2"}, {"share": "1/2"}]
TASK_CONFIG_LINES = config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS, INCARNATION)
EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


def jobs_of(*jobs: ConnectorName | ConnectorTaskId) -> Jobs:
    return Jobs.of(jobs)


ALL_JOBS = jobs_of(ORDERS, *TASKS)
BOTH_TASKS = jobs_of(*TASKS)
FIRST = jobs_of(TASKS[0])


def configured_herder(*more: NewTopicRecord) -> HerderDriver:
    """A herder that has read a connector and its two tasks from the config log."""
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES, *more)
    return herder


def working(protocol: ConnectProtocol = STATIC) -> HerderDriver:
    """A worker that runs both tasks of a connector."""
    driver = configured_herder()
    driver.assign(assigned=BOTH_TASKS, protocol=protocol)
    driver.run_all_chores()
    driver.effects.clear()
    return driver


def compute_round(
    herder: HerderDriver,
    generation: int,
    protocol: ConnectProtocol,
    owned: dict[MemberId, Jobs],
    claims: dict[MemberId, Jobs] | None = None,
) -> ComputedAssignments:
    """This leader's assignments for members that own ``owned``, as far as ``protocol`` can report it."""
    herder.feed(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}/"),
            config_offset=ConfigOffset(len(herder.config)),
            owned=NO_JOBS if protocol is EAGER else jobs,
            claims=(claims or {}).get(member),
        )
        for member, jobs in owned.items()
    }
    event = assignments_requested(members, generation=generation, protocol=protocol)
    herder.feed(event)
    (installed,) = herder.pop_effects(SendAssignments)
    assert installed.token == event.token
    return installed.computed


def lead_round(herder: HerderDriver, protocol: ConnectProtocol, owned: dict[MemberId, Jobs]) -> ComputedAssignments:
    """A whole rebalance in the next generation that this herder leads, without its delay."""
    computed = compute_round(herder, herder.generation + 1, protocol, owned)
    assignment = computed.assignments[ME]
    herder.assign(assigned=assignment.assigned, revoked=assignment.revoked, leader=ME, protocol=protocol)
    return computed


def assigned_jobs(computed: ComputedAssignments) -> Jobs:
    return Jobs.of(job for assignment in computed.assignments.values() for job in assignment.assigned)


def compute_static_round(
    herder: HerderDriver, owned: dict[MemberId, Jobs], protocol: ConnectProtocol = ConnectProtocol.STATIC
) -> ComputedAssignments:
    """This leader's assignments for members that report ``owned``; the rebalance completes."""
    herder.feed(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}/"), config_offset=ConfigOffset(len(herder.config)), owned=jobs
        )
        for member, jobs in owned.items()
    }
    herder.feed(assignments_requested(members, generation=herder.generation + 1, protocol=protocol))
    installed = herder.pop_effects(SendAssignments)
    if not installed:
        herder.now_ms += herder.herder.settings.sync_timeout_ms
        herder.feed(TimerFired(timer="assign"))
        installed = herder.pop_effects(SendAssignments)
    computed = installed[0].computed
    herder.complete_computed_round(computed, protocol)
    return computed
