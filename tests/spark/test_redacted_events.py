"""Secrets in the events of Spark's JVM, one event at a time.

`tests/processes/test_secrets.py` has the UI and the event log of a worker.
"""

import json
from typing import Any

import pytest
from py4j.protocol import Py4JError

from coterie.config.secrets import MASK, SecretNotHiddenError
from coterie.spark.redacted_events import make_java_redactor, set_hidden_texts
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


class Events:
    """Makes events of Spark, and redacts them with a redactor that is installed nowhere."""

    def __init__(self, rig: Rig) -> None:
        session = rig.session
        self.redactor = make_java_redactor(session)
        self.jvm: Any = session._jvm

    def application_start(self, name: str) -> Any:
        none = self.jvm.scala.Option.empty()
        start = self.jvm.org.apache.spark.scheduler.SparkListenerApplicationStart
        return start(name, none, 1, "user", none, none, none)

    def block_updated(self, block: str) -> Any:
        blocks = self.jvm.org.apache.spark.storage
        manager = blocks.BlockManagerId.apply("driver", "127.0.0.1", 1, self.jvm.scala.Option.empty())
        info = blocks.BlockUpdatedInfo(manager, blocks.BlockId.apply(block), blocks.StorageLevel.MEMORY_ONLY(), 1, 0)
        return self.jvm.org.apache.spark.scheduler.SparkListenerBlockUpdated(info)

    def keeps(self, event: Any) -> bool:
        """Whether the redactor returns the same object."""
        identity = self.jvm.java.lang.System.identityHashCode
        return bool(identity(self.redactor.redacted(event)) == identity(event))

    def json_of(self, event: Any) -> dict[str, Any]:
        text: str = self.jvm.org.apache.spark.util.JsonProtocol.sparkEventToJsonString(event)
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture(scope="module")
def events(rig: Rig) -> Events:
    """One for all tests: py4j keeps the methods of a class by the class's name, also if the class is compiled again."""
    return Events(rig)


@pytest.fixture(autouse=True)
def no_secrets(events: Events) -> None:
    set_hidden_texts(events.redactor, [])


async def test_an_event_without_a_secret_stays_the_same_object(events: Events) -> None:
    event = events.application_start("loads invoices")
    assert events.keeps(event)
    set_hidden_texts(events.redactor, ["hunter2"])
    assert events.keeps(event)


async def test_each_secret_in_an_event_is_replaced(events: Events) -> None:
    set_hidden_texts(events.redactor, ["hunter22", "hunter2", "a.b"])
    event = events.application_start("hunter22 then hunter2, and a.b is no pattern: axb")
    name = f"{MASK} then {MASK}, and {MASK} is no pattern: axb"
    assert events.json_of(events.redactor.redacted(event)) == {**events.json_of(event), "App Name": name}
    set_hidden_texts(events.redactor, [])
    assert events.keeps(event)


async def test_a_secret_that_is_the_name_of_the_events_type_hides_no_type(events: Events) -> None:
    set_hidden_texts(events.redactor, ["SparkListener"])
    redacted = events.redactor.redacted(events.application_start("SparkListener's application"))
    assert events.json_of(redacted)["App Name"] == f"{MASK}'s application"


async def test_an_event_that_cannot_be_redacted_is_not_shown(events: Events) -> None:
    """A block's id has a form. Spark cannot read an event with the mask in its place."""
    event = events.block_updated("rdd_1_2")
    set_hidden_texts(events.redactor, ["other"])
    assert events.keeps(event)
    set_hidden_texts(events.redactor, ["rdd_1_2"])
    assert events.redactor.redacted(event) is None


async def test_a_value_that_the_jvm_does_not_take_is_refused() -> None:
    class Ended:
        def setSecrets(self, _: str) -> None:
            raise Py4JError("Answer from Java side is empty")

    with pytest.raises(SecretNotHiddenError, match="event log could show it: Answer from Java"):
        set_hidden_texts(Ended(), ["hunter2"])
