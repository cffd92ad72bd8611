"""A herder's state of its group's rebalances when it starts with a handover."""

import pytest

from coterie.herder.rounds.state import HerderClassicGroupState, RejoinForStateChange
from coterie.nouns.ids import ConfigOffset, GenerationId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import ClassicMembershipHandover
from coterie.wire.connect import ConnectProtocol


def handover(protocol: ConnectProtocol, *, must_start_rebalance: bool = False) -> ClassicMembershipHandover:
    return ClassicMembershipHandover(
        member_id=MemberId("me"),
        generation=GenerationId(7),
        protocol=protocol.setting,
        leader=MemberId("other"),
        leader_url=WorkerUrl("http://leader:8083/"),
        config_offset=ConfigOffset(3),
        jobs=NO_JOBS,
        rebalance_delay_ends_ms=90_000,
        must_start_rebalance=must_start_rebalance,
    )


@pytest.mark.parametrize("protocol", ConnectProtocol)
def test_the_next_process_continues_with_the_protocol_the_generation_and_the_delay(protocol: ConnectProtocol) -> None:
    rounds = HerderClassicGroupState(handover(protocol))
    assert (rounds.protocol, rounds.last_completed_generation, rounds.rebalance_delay_ends_ms) == (protocol, 7, 90_000)
    assert rounds.rejoin_reasons == ()


def test_a_handover_that_must_request_a_rejoin_has_a_reason_for_it() -> None:
    (reason,) = HerderClassicGroupState(handover(ConnectProtocol.STATIC, must_start_rebalance=True)).rejoin_reasons
    assert isinstance(reason, RejoinForStateChange)
