"""A worker that the coordinator has chosen computes the target assignment."""

from coterie.herder.messages import ComputeTarget, TargetComputationEnded, WriteLogMessage
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.membership import InstallTarget, TargetRequested
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember
from tests.herder.builders import ALL_JOBS
from tests.herder.herder_driver import ME
from tests.herder.targets.connect_driver import ConnectHerderDriver, configured_driver

TOKEN = object()
SNAPSHOT = GroupSnapshot(
    group_epoch=GroupEpoch(4), assignor="cooperative", members=(), config_offset=ConfigOffset(3), configured=ALL_JOBS
)


def asked_to_compute() -> ConnectHerderDriver:
    """A worker that has ordered a computation."""
    driver = configured_driver()
    driver.receive()
    driver.feed(TargetRequested(token=TOKEN, snapshot=SNAPSHOT))
    (chore,) = driver.pop_effects(ComputeTarget)
    assert (chore.token, chore.snapshot) == (TOKEN, SNAPSHOT)
    return driver


def test_the_computed_target_is_sent_for_the_same_computation() -> None:
    driver = asked_to_compute()
    target = ComputedTarget(members={ME: TargetOfMember(jobs=ALL_JOBS)})
    driver.feed(TargetComputationEnded(token=TOKEN, target=target))
    (install,) = driver.pop_effects(InstallTarget)
    assert (install.token, install.target, install.error) == (TOKEN, target, "")


def test_a_failed_assignor_is_logged_and_reported() -> None:
    driver = asked_to_compute()
    driver.feed(TargetComputationEnded(token=TOKEN, target=None, error="ValueError: no"))
    (install,) = driver.pop_effects(InstallTarget)
    assert (install.target, install.error) == (None, "ValueError: no")
    errors = [message.text for message in driver.pop_effects(WriteLogMessage) if message.is_error]
    assert errors == [
        "The assignor of this worker could not compute the target assignment: ValueError: no. The present assignments "
        "stay; the coordinator orders another computation"
    ]
