"""The pinned jars, and what a JVM is found to lack of them."""

import pytest

from coterie.spark.jars import missing, missing_packages, packages
from tests.spark.conftest import Rig


def test_each_pinned_jar_has_a_file_name_of_its_own_and_a_whole_checksum() -> None:
    jars = [jar for package in packages().values() for jar in package.jars]
    assert len({jar.file_name for jar in jars}) == len(jars)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
async def test_a_jvm_with_no_jars_but_sparks_lacks_every_package(rig: Rig) -> None:
    spark = rig.spark_runtime._living().spark
    assert missing_packages(spark).keys() == packages().keys()
    sentence = missing(spark, "kafka")
    assert sentence is not None
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in sentence
    assert "coterie jars fetch kafka" in sentence
