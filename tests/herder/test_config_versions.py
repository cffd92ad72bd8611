"""Patches of configs, and the versions of configs: both are applied at the head of the queue of writes."""

import pytest

from coterie.herder.messages import AppendConfigLines, ValidateConfig
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.reads import ConnectorInfo, DescribeConnector
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.writes import (
    DeleteConnector,
    IfMatch,
    PatchConnector,
    PutConnector,
    Write,
    WrittenConnector,
)
from coterie.nouns.jobs import ConnectorName
from tests.herder.builders import CONFIG, CONNECTOR_LINE, DELETED, ORDERS, configured_herder
from tests.herder.herder_driver import ME, HerderDriver, validated

NONE = ConnectorName("none")
ANY = IfMatch(config_versions=None)


def leading() -> HerderDriver:
    herder = configured_herder()
    herder.assign(leader=ME)
    return herder


def config_of(herder: HerderDriver) -> dict[str, str]:
    connector = herder.herder.config.connector(ORDERS)
    assert connector is not None
    return dict(connector.config)


def problem_of(herder: HerderDriver, id_: RequestId) -> Problem | None:
    answer = herder.answer(id_)
    assert answer is not None
    return answer.problem if isinstance(answer, RequestRefused) else None


def test_a_patch_sets_keys_and_removes_those_that_are_null() -> None:
    herder = leading()
    id_ = herder.send_request(PatchConnector(connector=ORDERS, patch={"a": "1", "tasks.max": None, "no.such": None}))
    herder.run_all_chores()
    expected = {key: value for key, value in CONFIG.items() if key != "tasks.max"} | {"a": "1"}
    assert config_of(herder) == expected
    answer = herder.answer(id_)
    assert isinstance(answer, WrittenConnector)
    assert dict(answer.info.config) == expected
    assert (answer.created, answer.replaced_config) == (False, CONFIG)


def test_two_patches_at_the_same_time_are_both_applied_and_the_second_is_validated_with_the_first() -> None:
    herder = leading()
    ids = [herder.send_request(PatchConnector(connector=ORDERS, patch={key: "1"})) for key in ("a", "b")]
    herder.run_all_chores()
    assert [problem_of(herder, id_) for id_ in ids] == [None, None]
    assert config_of(herder) == {**CONFIG, "a": "1", "b": "1"}


def test_a_patch_is_validated_again_if_the_config_has_changed_meanwhile() -> None:
    herder = leading()
    id_ = herder.send_request(PatchConnector(connector=ORDERS, patch={"a": "1"}))
    (validation,) = herder.pop_effects(ValidateConfig)
    assert validation.config == {**CONFIG, "a": "1"}
    put = herder.send_request(PutConnector(connector=ORDERS, config={**CONFIG, "tasks.max": "7"}, may_replace=True))
    herder.run_all_chores()
    assert problem_of(herder, put) is None
    herder.feed(validated(id_))
    assert not herder.pop_effects(AppendConfigLines)
    (validation,) = herder.pop_effects(ValidateConfig)
    assert validation.config == {**CONFIG, "tasks.max": "7", "a": "1"}


def test_a_patch_of_an_unknown_connector_is_not_found() -> None:
    herder = leading()
    id_ = herder.send_request(PatchConnector(connector=NONE, patch={"a": "1"}))
    herder.run_all_chores()
    assert herder.answer(id_) == RequestRefused(problem=Problem.NOT_FOUND, message="Connector none not found")


@pytest.mark.parametrize(
    "write",
    [
        PutConnector(
            connector=ORDERS, config=CONFIG, may_replace=True, if_match=IfMatch(config_versions=frozenset({7}))
        ),
        PatchConnector(connector=ORDERS, patch={"a": "1"}, if_match=IfMatch(config_versions=frozenset())),
        DeleteConnector(connector=ORDERS, if_match=IfMatch(config_versions=frozenset({7, 8}))),
        PutConnector(connector=NONE, config={**CONFIG, "name": "none"}, may_replace=True, if_match=ANY),
    ],
    ids=lambda write: type(write).__name__,
)
def test_a_write_for_another_version_is_refused_and_writes_nothing(write: Write) -> None:
    herder = leading()
    before = len(herder.config)
    id_ = herder.send_request(write)
    herder.run_all_chores()
    assert problem_of(herder, id_) is Problem.VERSION_MISMATCH
    assert len(herder.config) == before


def test_of_two_writes_for_the_same_version_the_first_is_written() -> None:
    herder = leading()
    id_ = herder.send_request(DescribeConnector(connector=ORDERS))
    herder.run_all_chores()
    info = herder.answer(id_)
    assert isinstance(info, ConnectorInfo)
    assert info.config_version == herder.config.index(CONNECTOR_LINE)
    if_match = IfMatch(config_versions=frozenset({info.config_version}))
    ids = [
        herder.send_request(PutConnector(connector=ORDERS, config=CONFIG, may_replace=True, if_match=if_match))
        for _ in range(2)
    ]
    herder.run_all_chores()
    assert [problem_of(herder, id_) for id_ in ids] == [None, Problem.VERSION_MISMATCH], "the config is the same"
    written = herder.answer(ids[0])
    assert isinstance(written, WrittenConnector)
    assert written.info.config_version == len(herder.config) - 1
    deleted = herder.send_request(
        DeleteConnector(connector=ORDERS, if_match=IfMatch(config_versions=frozenset({written.info.config_version})))
    )
    herder.run_all_chores()
    assert herder.answer(deleted) == DELETED
