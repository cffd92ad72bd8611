"""Each Java name is looked up once in the JVM, and an absent class is looked up again."""

from collections.abc import Callable
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, is_instance_of
from py4j.protocol import REFL_GET_UNKNOWN_SUB_COMMAND_NAME, REFLECTION_COMMAND_NAME
from pyspark.errors import AnalysisException

from coterie.spark.java_names import CachingJvmView
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

LOOKUP = REFLECTION_COMMAND_NAME + REFL_GET_UNKNOWN_SUB_COMMAND_NAME
"""The beginning of py4j's request that asks whether a name is a class or a package."""


@pytest.fixture
def jvm(rig: Rig) -> Any:
    """A view of the JVM in which no name has been looked up."""
    gateway: Any = rig.session.sparkContext._gateway
    return CachingJvmView(gateway.new_jvm_view())


@pytest.fixture
def lookups(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up in the JVM since the beginning of the test."""
    gateway: Any = rig.session.sparkContext._gateway
    send_command: Callable[..., str] = gateway._gateway_client.send_command
    names: list[str] = []

    def send_and_note(command: str, *more: Any, **options: Any) -> str:
        if command.startswith(LOOKUP):
            names.append(command.removeprefix(LOOKUP).partition("\n")[0])
        return send_command(command, *more, **options)

    monkeypatch.setattr(gateway._gateway_client, "send_command", send_and_note)
    return names


async def test_each_part_of_a_dotted_name_is_looked_up_once(jvm: Any, lookups: list[str]) -> None:
    first = jvm.java.util.ArrayList
    assert lookups == ["java", "java.util", "java.util.ArrayList"]
    assert jvm.java.util.ArrayList is first
    assert isinstance(first, JavaClass)
    assert first().size() == 0
    jvm.java.util.HashMap()
    assert lookups[3:] == ["java.util.HashMap"]


async def test_an_absent_class_is_looked_up_again(jvm: Any, lookups: list[str]) -> None:
    for _ in range(2):
        assert isinstance(jvm.java.util.Absent, JavaPackage)
        with pytest.raises(TypeError, match="'JavaPackage' object is not callable"):
            jvm.java.util.Absent()
    assert lookups.count("java.util.Absent") == 4
    for _ in range(2):
        assert isinstance(getattr(jvm, "java.util.Absent"), JavaPackage)
    assert lookups.count("java.util.Absent") == 6


async def test_a_package_cannot_be_called(jvm: Any) -> None:
    """PySpark compares the message, to say that a jar is missing."""
    with pytest.raises(TypeError, match=r"^'JavaPackage' object is not callable$"):
        jvm.java.util()


async def test_a_worker_looks_up_the_names_of_pyspark_once(rig: Rig, lookups: list[str]) -> None:
    """PySpark tests each exception of Java against about ten classes, each with ``jvm.py4j.reflection.TypeUtil``."""
    spark: Any = rig.session
    assert isinstance(spark._jvm, CachingJvmView)

    def fail_to_parse() -> None:
        with pytest.raises(AnalysisException):
            spark.sql("SELECT absent_column")

    fail_to_parse()
    lookups.clear()
    fail_to_parse()
    assert is_instance_of(spark.sparkContext._gateway, spark._jvm.java.util.ArrayList(), "java.util.List")
    assert len(lookups) == len({*lookups} & {"java", "java.util", "java.util.ArrayList"})
