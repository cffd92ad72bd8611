"""A membership handover from a process to its successor, with a value in every field."""

from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import PlaceHandover

ODD = ConnectorName('or-der\\"s é')
PLACE = PlaceHandover(
    member_id=MemberId("worker-1-uuid"),
    generation=Generation(7),
    protocol="sessioned",
    leader=MemberId("worker-0-uuid"),
    leader_url=WorkerUrl("http://there:8083/"),
    config_offset=ConfigOffset(42),
    jobs=Jobs(frozenset({ODD}), frozenset(ConnectorTaskId(ODD, number) for number in range(1_000))),
    deferred_until_ms=12_345,
    may_have_missed_vote=True,
    must_ask_for_round=True,
)
