"""The reasons for a rejoin, and when it is requested."""

from coterie.herder.messages import ShutdownOrdered
from coterie.herder.rounds import rejoin
from coterie.herder.rounds.state import RejoinAfterConfigLogRead, RejoinAfterJobsReleased, RejoinForStateChange
from coterie.herder.state import Turn
from coterie.nouns.membership import Rejoin
from tests.herder.builders import working


def test_of_each_kind_of_reason_only_the_newest_is_kept() -> None:
    turn = Turn(working().herder, 0)
    rejoin.add_or_replace_reason(turn, RejoinForStateChange(reason="one"))
    rejoin.add_or_replace_reason(turn, RejoinAfterJobsReleased())
    rejoin.add_or_replace_reason(turn, RejoinForStateChange(reason="two"))
    assert turn.herder.rounds.rejoin_reasons == (RejoinAfterJobsReleased(), RejoinForStateChange(reason="two"))
    rejoin.drop_reasons(turn, RejoinAfterJobsReleased, RejoinAfterConfigLogRead)
    assert rejoin.has_reason(turn.herder, RejoinForStateChange)
    assert not rejoin.has_reason(turn.herder, RejoinAfterJobsReleased)


def test_a_reported_change_waits_for_its_announcement_and_requests_one_rejoin() -> None:
    turn = Turn(working().herder, 0)
    rejoin.add_or_replace_reason(turn, RejoinForStateChange(reason="news"))
    rejoin.request_rejoin_after_release_or_read(turn)
    assert not turn.effects
    rejoin.request_rejoin_to_report_worker_state(turn)
    rejoin.request_rejoin_to_report_worker_state(turn)
    assert turn.effects == [Rejoin(reason="news")]
    assert turn.herder.rounds.is_rejoin_requested


def test_a_leaving_worker_requests_no_rejoin() -> None:
    driver = working()
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    turn = Turn(driver.herder, 0)
    rejoin.request_rejoin(turn, "anything")
    assert not turn.effects
    assert not driver.herder.rounds.is_rejoin_requested
