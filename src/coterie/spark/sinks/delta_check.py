"""Validates a config of the Delta sink against the existing Delta table."""

from pyspark.sql import SparkSession

from coterie.nouns.errors import UnreachableError
from coterie.spark.jars import missing_jars_message
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.delta_columns import DeltaTableLayout
from coterie.spark.sinks.delta_table import SharedDeltaTable
from coterie.spark.sinks.delta_target import DeltaTarget


def find_first_table_error(spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
    """The first error found, as a message by the user's key, for a config whose values are valid: about the table, the
    folder if there is no table, missing jars, or a number of tasks for which Spark's Delta does not guarantee exactly
    once. Empty when no error was found. Writes nothing."""
    target = DeltaTarget.of(config)
    try:
        # Not `shared_table_at`: this process's tasks hold the lock of that table while they commit.
        layout = SharedDeltaTable(target.path).read_newest_layout()
    except UnreachableError as error:
        return config.error_by_key("path", str(error))
    except OSError as error:
        return config.error_by_key("path", error.strerror or str(error))
    if layout is None:
        if not target.creates_missing_table:
            return config.error_by_key(
                "path", f"There is no Delta table in {target.path}; create the table, or set auto.create=true"
            )
        if target.path.is_dir() and any(not entry.name.startswith(("_", ".")) for entry in target.path.iterdir()):
            return config.error_by_key(
                "path",
                f"{target.path} contains files that are no Delta table, and a new Delta table needs an empty folder; "
                "set another folder",
            )
    elif errors := _find_first_existing_table_error(target, layout, config):
        return errors
    if target.is_upsert and (missing_jars := missing_jars_message(spark, "delta")):
        return config.error_by_key(
            "insert.mode", f"An upsert too large for the driver is merged by Spark. {missing_jars}"
        )
    if layout is not None and layout.spark_only_reason and (missing_jars := missing_jars_message(spark, "delta")):
        return config.error_by_key(
            "path", f"Only Spark can write to this table: {layout.spark_only_reason}. {missing_jars}"
        )
    if _requires_exactly_once_of_several_tasks(config):
        advice = "set tasks.max=1, or remove exactly.once.support=required"
        if layout is not None and layout.spark_only_reason:
            return {
                "tasks.max": [
                    f"Only Spark can write to this table ({layout.spark_only_reason}), and commits of two tasks may "
                    f"replace each other: {advice}"
                ]
            }
        if target.is_upsert:
            return {
                "tasks.max": [
                    f"With {config.user_key('insert.mode')}=upsert Spark merges the batches that are too large for the "
                    f"driver, and its commit may replace the commit of another task: {advice}"
                ]
            }
    return {}


def _requires_exactly_once_of_several_tasks(config: PrefixedConfig) -> bool:
    """Whether the config requires exactly once and allows more than one task. Spark's Delta does not guarantee exactly
    once to several tasks: its commit is a rename, which may replace a commit of another worker at the same moment."""
    connector_config = config.config
    return (
        connector_config.get("exactly.once.support", "").strip() == "required"
        and connector_config.get("tasks.max", "1").strip() != "1"
    )


def _find_first_existing_table_error(
    target: DeltaTarget, layout: DeltaTableLayout, config: PrefixedConfig
) -> dict[str, list[str]]:
    """The first error found, as a message by the user's key: a key contradicts the layout of the existing table. Empty
    when there is no such key. If the layout has no columns, only ``insert.mode`` is checked."""
    if target.is_upsert and layout.is_append_only:
        return config.error_by_key(
            "insert.mode", "The table has delta.appendOnly=true; use insert, or unset the property"
        )
    if layout.columns is None:
        return {}
    for name in target.key_columns:
        if name not in layout.columns.names:
            return config.error_by_key(
                "pk.fields", f"The table has no column {name}; there are: {', '.join(sorted(layout.columns.names))}"
            )
    if target.partition_columns and target.partition_columns != layout.partition_columns:
        return config.error_by_key(
            "partition.field.name",
            f"The table is partitioned by: {', '.join(layout.partition_columns) or 'nothing'}; remove the key",
        )
    return {}
