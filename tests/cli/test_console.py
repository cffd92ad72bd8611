"""What commands print stays whole at any width of the terminal."""

import pytest
from rich.table import Table

from coterie.cli.console import make_console
from coterie.cli.groups.report import print_group
from coterie.kafka.group_admin import ClassicGroupDescription, ClassicMemberDescription
from coterie.nouns.ids import GroupId, InstanceId, MemberId

LONG_NAME = "connect-worker-7.data-platform.svc.cluster.local:8083"


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")


def test_a_row_and_a_sentence_are_one_line_each_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    table = Table("worker", "at", box=None)
    table.add_row(f"{LONG_NAME}:boom:", LONG_NAME)
    console.print(table)
    sentence = f"The group has no worker {LONG_NAME}; use the name or the address of one of its workers."
    console.print(sentence)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["worker", "at"],
        [f"{LONG_NAME}:boom:", LONG_NAME],
        sentence.split(),
    ]


def test_the_description_of_a_group_contains_whole_member_ids_and_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    member = ClassicMemberDescription(
        member_id=MemberId(f"{LONG_NAME}-6f1f7c1e-8f5c-4b52-9d1b-6f4c2a4d8f11"),
        instance_id=InstanceId("place-7"),
        client_id="worker-7",
        client_host=f"/{LONG_NAME}",
    )
    described = ClassicGroupDescription(state="Stable", protocol_type="connect", protocol="static", members=(member,))
    print_group(GroupId("pipelines"), described, make_console())
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        member.member_id,
        "place-7",
        "worker-7",
        f"/{LONG_NAME}",
    ]
