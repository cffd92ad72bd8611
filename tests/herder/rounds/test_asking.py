"""Why a round is owed, and when it is asked for."""

from coterie.herder.messages import ShutdownOrdered
from coterie.herder.rounds import asking
from coterie.herder.rounds.state import AfterReading, AfterRelease, ForNews
from coterie.herder.state import Turn
from coterie.nouns.membership import Rejoin
from tests.herder.builders import working


def test_one_reason_of_a_kind_is_kept_and_the_newest() -> None:
    turn = Turn(working().herder, 0)
    asking.owe(turn, ForNews(reason="one"))
    asking.owe(turn, AfterRelease())
    asking.owe(turn, ForNews(reason="two"))
    assert turn.herder.rounds.owed == (AfterRelease(), ForNews(reason="two"))
    asking.drop(turn, AfterRelease, AfterReading)
    assert asking.owes(turn.herder, ForNews)
    assert not asking.owes(turn.herder, AfterRelease)


def test_news_wait_for_their_announcement_and_are_asked_for_once() -> None:
    turn = Turn(working().herder, 0)
    asking.owe(turn, ForNews(reason="news"))
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
