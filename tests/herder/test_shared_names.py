"""The leader's warning about several workers with one `worker.name`, with both group protocols."""

from dataclasses import replace

from coterie.herder.messages import WriteLogMessage
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.membership import GroupDescribed, MemberReport
from tests.herder.builders import BOTH_TASKS, FIRST, STATIC, configured_herder
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver, assignments_requested
from tests.herder.targets.connect_driver import OTHER_URL, configured_driver, described_group, described_member

THIRD = MemberId("third")


def warnings(driver: HerderDriver) -> list[str]:
    return [message.text for message in driver.pop_effects(WriteLogMessage) if message.is_warning]


def warning_about(addresses: str) -> str:
    return (
        f"The workers {addresses} have the same name, worker.name=anna. If all of them run, give each of them another "
        "worker.name and restart it. Until then, name these workers by their addresses: an order by their name is "
        "refused"
    )


def test_the_leader_of_a_classic_group_warns_once_about_workers_with_one_name() -> None:
    herder = configured_herder()
    herder.assign(leader=ME, protocol=STATIC)

    def warnings_of_round(generation: int, *members: tuple[MemberId, str | None, str]) -> list[str]:
        reports = {
            member: MemberReport(
                url=WorkerUrl(f"http://{address}/"), name=name, config_offset=ConfigOffset(len(herder.config))
            )
            for member, name, address in members
        }
        herder.feed(ROUND)
        herder.feed(assignments_requested(reports, generation=generation, protocol=STATIC))
        return warnings(herder)

    me = (ME, "anna", "a:8083")
    assert warnings_of_round(2, me, (OTHER, "bert", "b:8083")) == []
    assert warnings_of_round(3, (ME, None, "a:8083"), (OTHER, None, "b:8083")) == [], "without a name"
    assert warnings_of_round(4, me, (OTHER, "anna", "a:8083")) == [], "a former member of the same worker"
    assert warnings_of_round(5, me, (OTHER, "anna", "b:8083")) == [warning_about("a:8083 and b:8083")]
    assert warnings_of_round(6, me, (OTHER, "anna", "b:8083")) == [], "not again"
    third = (THIRD, "anna", "c:8083")
    assert warnings_of_round(7, me, (OTHER, "anna", "b:8083"), third) == [warning_about("a:8083 and b:8083 and c:8083")]
    assert warnings_of_round(8, me, (OTHER, "anna", "b:8083")) == []
    assert warnings_of_round(9, me) == []
    assert warnings_of_round(10, me, third) == [warning_about("a:8083 and c:8083")], "again after it was solved"


def test_the_leader_of_a_connect_group_warns_once_about_workers_with_one_name() -> None:
    driver = configured_driver()
    driver.receive(FIRST, leader=ME)
    here = replace(described_member(ME, assigned=FIRST), name="anna", url=WorkerUrl("http://a:8083/"))
    there = replace(described_member(OTHER, assigned=BOTH_TASKS - FIRST), name="anna", url=OTHER_URL)
    driver.feed(GroupDescribed(description=described_group(here, replace(there, name="bert"))))
    driver.feed(GroupDescribed(description=described_group(replace(here, name=""), replace(there, name=""))))
    assert warnings(driver) == []
    for _ in range(2):
        driver.feed(GroupDescribed(description=described_group(here, there)))
    assert warnings(driver) == [warning_about(f"a:8083 and {OTHER_URL.split('/')[2]}")]
