"""Why a round is asked for, and when."""

from coterie.herder.messages import ShutdownOrdered
from coterie.herder.rounds import asking
from coterie.herder.rounds.state import AfterReading, AfterRelease, ForNews
from coterie.herder.state import Turn
from coterie.nouns.membership import Rejoin
from tests.herder.builders import working


def test_one_reason_of_a_kind_is_kept_and_the_newest() -> None:
    turn = Turn(working().herder, 0)
    asking.add_reason(turn, ForNews(reason="one"))
    asking.add_reason(turn, AfterRelease())
    asking.add_reason(turn, ForNews(reason="two"))
    assert turn.herder.rounds.pending_reasons == (AfterRelease(), ForNews(reason="two"))
    asking.drop_reasons(turn, AfterRelease, AfterReading)
    assert asking.has_reason(turn.herder, ForNews)
    assert not asking.has_reason(turn.herder, AfterRelease)


def test_news_wait_for_their_announcement_and_are_asked_for_once() -> None:
    turn = Turn(working().herder, 0)
    asking.add_reason(turn, ForNews(reason="news"))
    asking.advance(turn)
    assert not turn.effects
    asking.announce(turn)
    asking.announce(turn)
    assert turn.effects == [Rejoin(reason="news")]
    assert turn.herder.rounds.is_asked


def test_a_worker_that_leaves_asks_for_no_round() -> None:
    hand = working()
    hand.tell(ShutdownOrdered(reason="SIGTERM"))
    turn = Turn(hand.herder, 0)
    asking.ask_for_round(turn, "anything")
    assert not turn.effects
    assert not hand.herder.rounds.is_asked
