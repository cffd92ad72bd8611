"""Column definitions as in CREATE TABLE, and the ids of columns in Spark's plans."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def to_ddl(spark: SparkSession, columns: StructType) -> str:
    """``columns`` as text, as in CREATE TABLE: ``id BIGINT,name STRING``. PySpark has no such function."""
    java: Any = spark._jvm
    return str(java.org.apache.spark.sql.types.DataType.fromJson(columns.json()).toDDL())


def column_id_by_name(rows: DataFrame) -> dict[str, int]:
    """Spark's id (``exprId``) of each column of ``rows``, by column name. A projection that keeps a column unchanged
    keeps the column's id."""
    frame: Any = rows
    output = frame._jdf.queryExecution().analyzed().output()
    attributes = [output.apply(index) for index in range(output.length())]
    return {str(attribute.name()): int(attribute.exprId().id()) for attribute in attributes}
