"""What a herder remembers of its group's rounds when it goes on in a handed-over place."""

import pytest

from coterie.herder.rounds.state import ForNews, Rounds
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect import ConnectProtocol


def handover(protocol: ConnectProtocol, *, must_ask_for_round: bool = False) -> PlaceHandover:
    return PlaceHandover(
        member_id=MemberId("me"),
        generation=Generation(7),
        protocol=protocol.setting,
        leader=MemberId("other"),
        leader_url=WorkerUrl("http://leader:8083/"),
        config_offset=ConfigOffset(3),
        jobs=NO_JOBS,
        deferred_until_ms=90_000,
        must_ask_for_round=must_ask_for_round,
    )


@pytest.mark.parametrize("protocol", ConnectProtocol)
def test_the_next_life_goes_on_with_the_protocol_the_generation_and_the_delay(protocol: ConnectProtocol) -> None:
    rounds = Rounds(handover(protocol))
    assert (rounds.protocol, rounds.completed, rounds.deferred_until_ms) == (protocol, 7, 90_000)
    assert rounds.pending_reasons == ()


def test_a_place_that_owes_a_round_is_announced_in_the_next_life() -> None:
    (reason,) = Rounds(handover(ConnectProtocol.STATIC, must_ask_for_round=True)).pending_reasons
    assert isinstance(reason, ForNews)
