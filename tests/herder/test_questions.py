"""Questions to plug-ins: answered by any worker, also without a leader."""

from coterie.config.infos import NULL_VALUE_ERROR, ConfigInfos
from coterie.herder.messages import (
    AskPlugins,
    ConfigCouldNotBeValidated,
    FindConfigLogEnd,
    PluginQuestionAnswered,
    ShutdownOrdered,
    TimerFired,
    ValidateConfig,
)
from coterie.herder.requests.questions import (
    DescribePlugin,
    ListPlugins,
    PluginConfigKeys,
    PluginList,
    ValidateConnectorConfig,
)
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.timers import RequestTimeoutDue
from tests.herder.builders import CONFIG, ORDERS, ORDERS_TASK_CONFIGS, configured_herder
from tests.herder.herder_driver import PLUGINS, HerderDriver, validated


def opened_herder() -> HerderDriver:
    """A herder that is not yet a member of a group."""
    herder = HerderDriver()
    herder.open_runtime()
    return herder


def test_a_worker_that_has_never_joined_a_group_answers_questions() -> None:
    herder = opened_herder()
    ids = [herder.send_request(ListPlugins(connectors_only=only)) for only in (True, False)]
    assert not herder.pop_effects(FindConfigLogEnd), "a question does not wait for the log"
    herder.run_all_chores()
    assert [herder.answer(id_) for id_ in ids] == [PluginList(plugins=PLUGINS[:1]), PluginList(plugins=PLUGINS)]
    described = herder.send_request(DescribePlugin(name="a.Sink", version_range=None))
    herder.run_all_chores()
    assert herder.answer(described) == PluginConfigKeys(keys=())


def test_a_validation_of_a_known_connector_considers_its_checkpoints() -> None:
    herder = configured_herder()
    herder.send_request(ValidateConnectorConfig(config={**CONFIG, "name": ORDERS}))
    herder.send_request(ValidateConnectorConfig(config={**CONFIG, "name": "new"}))
    known, new = herder.pop_effects(ValidateConfig)
    assert list(known.configs_of_checkpointed_tasks) == ORDERS_TASK_CONFIGS
    assert not new.configs_of_checkpointed_tasks


def test_nulls_and_an_invalid_name_are_errors_of_their_keys() -> None:
    herder = opened_herder()
    id_ = herder.send_request(ValidateConnectorConfig(config={"connector.class": "A", "name": "a/b", "key": None}))
    (validation,) = herder.pop_effects(ValidateConfig)
    assert "key" not in validation.config
    herder.feed(validated(id_, {"other": ["wrong"]}))
    answer = herder.answer(id_)
    assert isinstance(answer, ConfigInfos)
    assert answer.errors["key"] == [NULL_VALUE_ERROR]
    assert answer.errors["other"] == ["wrong"]
    assert "slash" in answer.errors["name"][0]


def test_a_config_without_a_class_is_refused() -> None:
    herder = opened_herder()
    for config in ({"name": "a"}, {"name": "a", "connector.class": None}):
        answer = herder.answer(herder.send_request(ValidateConnectorConfig(config=config)))
        assert isinstance(answer, RequestRefused)
        assert answer.problem is Problem.BAD_REQUEST
        assert answer.message == "Connector config {name=a} contains no connector type"
    assert not herder.chores()


def test_a_config_that_cannot_be_validated_is_no_invalid_config() -> None:
    herder = opened_herder()
    id_ = herder.send_request(ValidateConnectorConfig(config=CONFIG))
    herder.feed(ConfigCouldNotBeValidated(id=id_, failure="no server"))
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.message) == (Problem.NOT_VALIDATED, "Failed to validate the config: no server")


def test_a_question_that_is_not_answered_in_time_is_refused_with_its_stage() -> None:
    herder = opened_herder()
    stages = {
        herder.send_request(ListPlugins(connectors_only=True)): "listing its plugins",
        herder.send_request(DescribePlugin(name="a", version_range=None)): "retrieving the configuration definition",
        herder.send_request(
            ValidateConnectorConfig(config=CONFIG)
        ): "performing multi-property validation for the connector,",
    }
    for id_, stage in stages.items():
        herder.feed(TimerFired(timer=RequestTimeoutDue(id=id_)))
        answer = herder.answer(id_)
        assert isinstance(answer, RequestRefused)
        assert answer.problem is Problem.TIMED_OUT
        assert f"The worker is currently {stage}" in answer.message
        assert answer.message.endswith(", which began at 2026-11-21T02:39:26.406Z.")
    for chore in herder.chores():  # A late answer changes nothing.
        herder.run_chore(chore)
    assert all(isinstance(herder.answer(id_), RequestRefused) for id_ in stages)


def test_a_worker_that_leaves_refuses_open_questions() -> None:
    herder = opened_herder()
    id_ = herder.send_request(ListPlugins(connectors_only=True))
    (question,) = herder.pop_effects(AskPlugins)
    herder.feed(ShutdownOrdered(reason="test"))
    assert herder.answer(id_) is None, "it has time to answer"
    herder.feed(TimerFired(timer="shutdown"))
    answer = herder.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.SHUTTING_DOWN
    herder.feed(PluginQuestionAnswered(id=question.id, answer=PluginList(plugins=PLUGINS)))
