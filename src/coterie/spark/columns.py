"""Columns as users write them: as in CREATE TABLE."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType


def ddl_of(spark: SparkSession, columns: StructType) -> str:
    """``columns`` as in CREATE TABLE; PySpark itself has no such function."""
    java: Any = spark._jvm
    return str(java.org.apache.spark.sql.types.DataType.fromJson(columns.json()).toDDL())
