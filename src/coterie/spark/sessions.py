"""The Spark sessions of tasks and of the checks of their configs."""

from pyspark.sql import SparkSession

FUNCTIONS_THAT_CALL_JAVA: tuple[str, ...] = ("java_method", "reflect", "try_reflect")
"""Spark's SQL functions that call any static method of Java, also ``System.exit``."""


def new_session_without_java_functions(spark: SparkSession) -> SparkSession:
    """A new session of the application of ``spark``, without :data:`FUNCTIONS_THAT_CALL_JAVA`: a condition or query of
    a connector must not end the worker or read its environment.

    :raises RuntimeError: when Spark has no such function: Coterie does not support this version of Spark.
    """
    session = spark.newSession()
    jvm = session._jvm
    assert jvm is not None
    registry = session._jsparkSession.sessionState().functionRegistry()
    some, identifier = jvm.scala.Some, jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    for name in FUNCTIONS_THAT_CALL_JAVA:
        if not registry.dropFunction(identifier(name, some("builtin"), some("system"))):
            raise RuntimeError(
                f"Spark has no SQL function system.builtin.{name}, which Coterie removes from each session: Coterie "
                "does not support this version of Spark"
            )
    return session
