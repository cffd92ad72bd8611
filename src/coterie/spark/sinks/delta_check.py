"""Validates a config of the Delta sink against the existing Delta table."""

from pyspark.sql import SparkSession

from coterie.nouns.errors import UnreachableError
from coterie.spark.end_config import EndConfig
from coterie.spark.jars import missing
from coterie.spark.sinks.delta_columns import Layout
from coterie.spark.sinks.delta_table import Table
from coterie.spark.sinks.delta_target import DeltaTarget


def errors_at_table(spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
    """Errors by the user's key, for a config whose keys are valid."""
    target = DeltaTarget.of(config)
    try:
        # Not `table_at`: this process's tasks hold the lock of that table while they commit.
        layout = Table(target.path).look()
    except UnreachableError as error:
        return config.error("path", str(error))
    except OSError as error:
        return config.error("path", error.strerror or str(error))
    if layout is None:
        if not target.auto_create:
            return config.error("path", "There is no Delta table; create the table, or set auto.create=true")
        if target.path.is_dir() and any(not entry.name.startswith(("_", ".")) for entry in target.path.iterdir()):
            return config.error("path", "The folder contains other files, and a Delta table needs an empty folder")
    elif found := _at_table(target, layout, config):
        return found
    if target.is_upsert and (lacking := missing(spark, "delta")):
        return config.error("insert.mode", f"An upsert too large for the driver is merged by Spark. {lacking}")
    if layout is not None and layout.only_spark and (lacking := missing(spark, "delta")):
        return config.error("path", f"Only Spark can write to this table: {layout.only_spark}. {lacking}")
    if layout is not None and layout.only_spark and _promises_more_than_one_writer_can(config):
        return {
            "tasks.max": [
                f"Only Spark can write to this table ({layout.only_spark}), and commits of two tasks may replace each "
                "other: set 1, or leave exactly.once.support=required out"
            ]
        }
    return {}


def _promises_more_than_one_writer_can(config: EndConfig) -> bool:
    stated = config.config
    return stated.get("exactly.once.support", "").strip() == "required" and stated.get("tasks.max", "1").strip() != "1"


def _at_table(target: DeltaTarget, layout: Layout, config: EndConfig) -> dict[str, list[str]]:
    if target.is_upsert and layout.is_append_only:
        return config.error("insert.mode", "The table has delta.appendOnly=true; use insert, or unset the property")
    if layout.columns is None:
        return {}
    for name in target.key_columns:
        if name not in layout.columns.names:
            return config.error(
                "pk.fields", f"The table has no column {name}; there are: {', '.join(sorted(layout.columns.names))}"
            )
    if target.partition_columns and target.partition_columns != layout.partition_columns:
        return config.error(
            "partition.field.name",
            f"The table is partitioned by: {', '.join(layout.partition_columns) or 'nothing'}; drop the key",
        )
    return {}
