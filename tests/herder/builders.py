"""A connector with two tasks, and rounds that a herder by hand takes part in or leads."""

from coterie.engine.log import NewLine
from coterie.herder import config_records
from coterie.herder.messages import TimerFired
from coterie.nouns.ids import ConfigOffset, Incarnation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import Computed, Install, MemberReport
from coterie.wire.connect import ConnectProtocol
from tests.herder.by_hand import ME, ROUND, ByHand, wanted

ORDERS = ConnectorName("orders")
TASKS = [ConnectorTaskId(ORDERS, number) for number in range(2)]
LIFE = Incarnation("life-0")
CONFIG = {"connector.class": "X", "tasks.max": "2", "name": "orders"}
BORN = config_records.connector_line(ORDERS, CONFIG, LIFE)
SHARES = [{"share": "0/2"}, {"share": "1/2"}]
DEALT = config_records.task_config_lines(ORDERS, SHARES)
EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


def only(*jobs: ConnectorName | ConnectorTaskId) -> Jobs:
    return Jobs.of(jobs)


ALL_JOBS = only(ORDERS, *TASKS)
BOTH_TASKS = only(*TASKS)
FIRST = only(TASKS[0])


def ready(*more: NewLine) -> ByHand:
    """One that has read of a connector and its two tasks."""
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT, *more)
    return herder


def working(protocol: ConnectProtocol = STATIC) -> ByHand:
    """A worker that runs both tasks of a connector."""
    hand = ready()
    hand.assign(assigned=BOTH_TASKS, protocol=protocol)
    hand.obey()
    hand.orders.clear()
    return hand


def deal(
    herder: ByHand,
    generation: int,
    protocol: ConnectProtocol,
    owned: dict[MemberId, Jobs],
    claims: dict[MemberId, Jobs] | None = None,
) -> Computed:
    """What this leader gives, and takes from, members that report of themselves what ``protocol`` has a place for."""
    herder.tell(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}/"),
            config_offset=ConfigOffset(len(herder.config)),
            owned=NO_JOBS if protocol is EAGER else jobs,
            claims=(claims or {}).get(member),
        )
        for member, jobs in owned.items()
    }
    event = wanted(members, generation=generation, protocol=protocol)
    herder.tell(event)
    (installed,) = herder.take(Install)
    assert installed.token == event.token
    return installed.computed


def lead(herder: ByHand, protocol: ConnectProtocol, owned: dict[MemberId, Jobs]) -> Computed:
    """A whole round that this herder leads, but for its delay; its number follows the last one's."""
    dealt = deal(herder, herder.generation + 1, protocol, owned)
    mine = dealt.assignments[ME]
    herder.assign(assigned=mine.assigned, revoked=mine.revoked, leader=ME, protocol=protocol)
    return dealt


def given(dealt: Computed) -> Jobs:
    return Jobs.of(job for one in dealt.assignments.values() for job in one.assigned)


def round_of(
    herder: ByHand, owned: dict[MemberId, Jobs], protocol: ConnectProtocol = ConnectProtocol.STATIC
) -> Computed:
    """What this leader answers when ``owned`` is what members say that they run."""
    herder.tell(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}/"), config_offset=ConfigOffset(len(herder.config)), owned=jobs
        )
        for member, jobs in owned.items()
    }
    herder.tell(wanted(members, generation=herder.generation + 1, protocol=protocol))
    installed = herder.take(Install)
    if not installed:
        herder.now_ms += herder.herder.settings.sync_timeout_ms
        herder.tell(TimerFired(timer="assign"))
        installed = herder.take(Install)
    computed = installed[0].computed
    herder.take_computed(computed, protocol)
    return computed
