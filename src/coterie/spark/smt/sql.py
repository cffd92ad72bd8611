"""``Sql``: a SELECT over each row. The query does not see the metadata columns of the rows, which are kept unchanged.

The query is analysed and never executed. Its plan must be a chain of projections, filters and generators over the view
``source``. The same chain is then applied to the rows with their metadata columns, which are added to each projection.
Attributes are bound by ids, so the query's own columns are the same in both plans.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import blank_value_error
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import metadata_column_names, without_metadata_columns
from coterie.spark.smt.transform_type import KeyOrValue, TransformType, make_transform_config_key

SOURCE_VIEW = "source"
"""The name in queries for the rows to which the transform is applied."""

_UNSUPPORTED_NODES = {
    "Aggregate": "aggregates and GROUP BY",
    "Distinct": "DISTINCT",
    "Deduplicate": "DISTINCT",
    "Join": "joins",
    "Window": "window functions",
    "Sort": "ORDER BY",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Union": "UNION",
    "Intersect": "INTERSECT",
    "Except": "EXCEPT",
    "Pivot": "PIVOT",
    "Unpivot": "UNPIVOT",
    "Expand": "GROUPING SETS",
    "Sample": "TABLESAMPLE",
    "WithCTE": "WITH",
    "RepartitionByExpression": "DISTRIBUTE BY and CLUSTER BY",
    "OneRowRelation": "a SELECT without FROM source",
    "LocalRelation": "VALUES",
    "Range": "functions that make a table",
}
"""By Spark's name of a plan node that does not work row by row: the name of the SQL feature in error messages."""


def _apply_sql(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """Sql: the result of the query over ``rows``, with their metadata columns (hidden columns with a record's key,
    headers, ...), which the query cannot read or change."""
    query = settings.required_value(SQL.definition, "query", str)
    # The view is in the session of this task only, so it cannot replace the view of another task.
    without_metadata_columns(rows).createOrReplaceTempView(SOURCE_VIEW)
    try:
        resolved_plan = _resolve_query_plan(rows.sparkSession, query)
        return _plan_to_dataframe(rows.sparkSession, _replace_view_in_plan_by_rows(rows, resolved_plan))
    finally:
        rows.sparkSession.catalog.dropTempView(SOURCE_VIEW)


def _resolve_query_plan(spark: SparkSession, query: str) -> Any:
    """Spark's resolved plan of the query, which is not executed."""
    session, jvm = spark._jsparkSession, spark._jvm
    assert jvm is not None
    state = session.sessionState()
    parsed = state.sqlParser().parsePlan(query)
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    return state.executePlan(parsed, skip).analyzed()


def _plan_to_dataframe(spark: SparkSession, plan: Any) -> DataFrame:
    """The DataFrame with the logical plan ``plan``."""
    jvm = spark._jvm
    assert jvm is not None
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _replace_view_in_plan_by_rows(rows: DataFrame, plan: Any) -> Any:
    """The plan that applies the nodes of ``plan``, the resolved plan of a query over the view ``source``, to ``rows``,
    and keeps the metadata columns of ``rows``.

    :raises ValueError: when ``plan`` is not a chain of projections, filters and generators over this view.
    """
    metadata_columns = metadata_column_names(rows)
    built_plan = rows._jdf.queryExecution().analyzed()
    nodes = list(_checked_nodes_above_view(plan))
    for node in reversed(nodes):
        built_plan = _with_child_and_metadata_columns(rows.sparkSession, node, built_plan, metadata_columns)
    return built_plan


def _checked_nodes_above_view(plan: Any) -> Iterator[Any]:
    """The nodes of ``plan`` above the view ``source``, from the top. Aliases of subqueries in FROM are left out: they
    have no effect, because the plan is already resolved.

    :raises ValueError: when ``plan`` is not a chain of projections, filters and generators over this view.
    """
    while True:
        name = str(plan.nodeName())
        if not plan.subqueries().isEmpty():
            raise ValueError(
                "the query has a subquery in an expression, which is not supported: each row of the result must come "
                f"from one row of {SOURCE_VIEW}"
            )
        if name == "SubqueryAlias":
            if str(plan.identifier().name()) == SOURCE_VIEW and str(plan.child().nodeName()) == "View":
                return
            plan = plan.child()
            continue
        if name not in ("Project", "Filter", "Generate"):
            sql_feature = _UNSUPPORTED_NODES.get(name)
            if sql_feature is None:
                raise ValueError(
                    f"the query is not a SELECT … FROM {SOURCE_VIEW} in which each row of the result comes from one "
                    f"row of {SOURCE_VIEW}: its plan contains {name}"
                )
            raise ValueError(
                f"the query uses {sql_feature}, which is not supported: each row of the result must come from one row "
                f"of {SOURCE_VIEW}"
            )
        yield plan
        plan = plan.child()


def _with_child_and_metadata_columns(spark: SparkSession, node: Any, child: Any, metadata_columns: list[str]) -> Any:
    """The plan ``node`` with ``child`` as its only child. A projection also keeps the columns with the names
    ``metadata_columns``."""
    jvm = spark._jvm
    assert jvm is not None
    to_scala_seq = jvm.PythonUtils.toSeq
    if str(node.nodeName()) != "Project" or not metadata_columns:
        return node.withNewChildren(to_scala_seq([child]))
    output = child.output()
    passed_attributes = [
        attribute for attribute in map(output.apply, range(output.size())) if str(attribute.name()) in metadata_columns
    ]
    return node.copy(node.projectList().appendedAll(to_scala_seq(passed_attributes)), child)


SQL = TransformType(
    short_class_name="Sql",
    java_package=None,
    keys=(
        make_transform_config_key(
            "query", "SELECT … FROM source, over each row.", "Query", validator=blank_value_error
        ),
    ),
    apply=_apply_sql,
    accepts_predicate=False,
)
