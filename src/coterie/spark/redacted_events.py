"""Hides the values of references to secrets in Spark's UI and event log.

Spark's UI and event log are two consumers of the events of the JVM: plans of queries, settings, results of jobs, and
their exceptions. Spark's own redaction (:mod:`coterie.spark.redaction`) covers the options of readers and writers, but
neither all texts of a plan nor exceptions. So a listener of this module stands between Spark and each of its listeners
for the UI and the event log: it forwards an event unchanged if its JSON contains no secret, else the event that Spark's
history server would read from the redacted JSON. The listener is written in Java (`EventRedactor.java`), because a call
from the JVM to Python for each event would be too slow. Janino, with which Spark compiles its queries, compiles it.

Uses Spark's internals: the queues of its listener bus, and the listener of the page of streaming queries.
"""

import json
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coterie.config.secrets import MASK, SecretNotHiddenError, add_secrets_follower_and_call_it, remove_secrets_follower
from coterie.nouns.errors import WorldError

_CLASS = "coterie.spark.EventRedactor"
_JAVA_FILE = "EventRedactor.java"


class EventRedactor:
    """Hides the values of references to secrets in the events that Spark's UI and event log show. It follows the list
    of these values until it is closed; afterwards the JVM continues to hide those that it has received."""

    def __init__(self, spark: SparkSession) -> None:
        """Begin to hide the values that are known now. Values that are registered later are hidden too: each is sent to
        the JVM during its :func:`coterie.config.secrets.register_secret_to_hide`. To be called before ``spark`` runs a
        query.

        :raises Py4JError: when this version of Spark has other internals.
        :raises SecretNotHiddenError: when the JVM does not take the values.
        """
        java_redactor = make_java_redactor(spark)
        java_redactor.install(spark.sparkContext._jsc.sc(), spark._jsparkSession.sharedState())
        self._follower = partial(set_hidden_texts, java_redactor)
        add_secrets_follower_and_call_it(self._follower)

    def close(self) -> None:
        """Send no further values to the JVM. The JVM continues to hide those that it has received."""
        remove_secrets_follower(self._follower)


def set_hidden_texts(java_redactor: Any, texts: Sequence[str]) -> None:
    """Make ``texts`` the list of texts that ``java_redactor`` (:func:`make_java_redactor`) hides from now on, in place
    of the former list; where several match at the same place, the first is hidden.

    :raises SecretNotHiddenError: when the JVM does not take ``texts``, for example because it has ended.
    """
    try:
        java_redactor.setSecrets(json.dumps(list(texts)))
    except (Py4JError, PySparkException, OSError) as error:
        raise SecretNotHiddenError(
            "This worker does not use the value of a reference, because Spark's JVM did not take it, and its UI and "
            f"event log could show it: {error}"
        ) from error


def make_java_redactor(spark: SparkSession) -> Any:
    """A new object of the Java class in `EventRedactor.java`, which knows no secret and is installed nowhere.

    :raises Py4JError: when this version of Spark has other internals.
    """
    gateway, jvm = spark.sparkContext._gateway, spark._jvm
    assert gateway is not None
    assert jvm is not None
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.cook((resources.files("coterie.spark") / _JAVA_FILE).read_text())
    arguments = gateway.new_array(jvm.Object, 1)
    arguments[0] = MASK
    return compiler.getClassLoader().loadClass(_CLASS).getConstructors()[0].newInstance(arguments)


def install_redactor_if_ui_or_log(spark: SparkSession) -> EventRedactor | None:
    """Begin to hide the values of references to secrets in the events of ``spark``, and return the redactor; None,
    without any effect, if Spark has neither UI nor event log.

    :raises WorldError: when this version of Spark has other internals, or the JVM does not take the known values.
    """
    context = spark.sparkContext._jsc.sc()
    if not context.ui().isDefined() and not context.eventLogger().isDefined():
        return None
    try:
        return EventRedactor(spark)
    except (Py4JError, PySparkException) as error:
        raise WorldError(
            "Secrets could not be hidden in Spark's UI and event log, probably because this version of Spark is not "
            f"supported; set spark.ui.enabled=false and spark.eventLog.enabled=false: {error}"
        ) from error
