"""Columns as users write them, as in CREATE TABLE; and as Spark's plans number them."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def ddl_of(spark: SparkSession, columns: StructType) -> str:
    """``columns`` as in CREATE TABLE; PySpark itself has no such function."""
    java: Any = spark._jvm
    return str(java.org.apache.spark.sql.types.DataType.fromJson(columns.json()).toDDL())


def column_ids(rows: DataFrame) -> dict[str, int]:
    """Spark's number of each column, by name. A projection that hands a column on keeps its number."""
    frame: Any = rows
    output = frame._jdf.queryExecution().analyzed().output()
    attributes = [output.apply(index) for index in range(output.length())]
    return {str(attribute.name()): int(attribute.exprId().id()) for attribute in attributes}
