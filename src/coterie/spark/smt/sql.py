"""``Sql``: a SELECT over each row. The query does not see the metadata columns of the rows, which are kept unchanged.

The query is analysed and never executed. Its plan must be a chain of projections, filters and generators over the view
``source``. The same chain is then applied to the rows with their metadata columns, which are added to each projection.
Attributes are bound by ids, so the query's own columns are the same in both plans.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import not_blank
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import metadata_names, without_metadata
from coterie.spark.smt.transform_type import Side, TransformType, key

VIEW = "source"
"""The name in queries for the rows to which the transform is applied."""

_REFUSED = {
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
"""By Spark's name: the nodes of a plan that do not work row by row, each with its name in error messages for users."""


def _apply(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """Sql: the result of the query, with the rows' metadata columns."""
    query = settings.read(SQL.definition, "query", str)
    # The view is in the session of this task only, so it cannot replace the view of another task.
    without_metadata(rows).createOrReplaceTempView(VIEW)
    try:
        analysed = _analysed(rows.sparkSession, query)
        return _dataset(rows.sparkSession, _on_rows(rows, analysed))
    finally:
        rows.sparkSession.catalog.dropTempView(VIEW)


def _analysed(spark: SparkSession, query: str) -> Any:
    """Spark's resolved plan of the query, which is not executed."""
    session, jvm = spark._jsparkSession, spark._jvm
    assert jvm is not None
    state = session.sessionState()
    parsed = state.sqlParser().parsePlan(query)
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    return state.executePlan(parsed, skip).analyzed()


def _dataset(spark: SparkSession, plan: Any) -> DataFrame:
    """The DataFrame of a plan."""
    jvm = spark._jvm
    assert jvm is not None
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _on_rows(rows: DataFrame, plan: Any) -> Any:
    """The plan that applies the nodes of ``plan``, the resolved plan of a query over the view, to ``rows``.

    :raises ValueError: when ``plan`` is not a chain of projections, filters and generators over the view.
    """
    hidden = metadata_names(rows)
    own = rows._jdf.queryExecution().analyzed()
    chain = list(_chain(plan))
    for node in reversed(chain):
        own = _with_child(rows.sparkSession, node, own, hidden)
    return own


def _chain(plan: Any) -> Iterator[Any]:
    """The nodes of ``plan`` above the view, from the top. Aliases of subqueries in FROM are left out: they have no
    effect, because the plan is already resolved.

    :raises ValueError: when ``plan`` is not a chain of projections, filters and generators over the view.
    """
    while True:
        name = str(plan.nodeName())
        if not plan.subqueries().isEmpty():
            raise ValueError("the query has a subquery in an expression; a query works row by row")
        if name == "SubqueryAlias":
            if str(plan.identifier().name()) == VIEW and str(plan.child().nodeName()) == "View":
                return
            plan = plan.child()
            continue
        if name not in ("Project", "Filter", "Generate"):
            what = _REFUSED.get(name)
            if what is None:
                raise ValueError(
                    f"the query is not a SELECT … FROM {VIEW} that works row by row: its plan contains {name}"
                )
            raise ValueError(f"the query uses {what}; a query works row by row and reads only {VIEW}")
        yield plan
        plan = plan.child()


def _with_child(spark: SparkSession, node: Any, child: Any, hidden: list[str]) -> Any:
    """The plan ``node`` with ``child`` as its only child. A projection also passes the columns ``hidden`` on."""
    jvm = spark._jvm
    assert jvm is not None
    seq = jvm.PythonUtils.toSeq
    if str(node.nodeName()) != "Project" or not hidden:
        return node.withNewChildren(seq([child]))
    output = child.output()
    passed = [one for one in map(output.apply, range(output.size())) if str(one.name()) in hidden]
    return node.copy(node.projectList().appendedAll(seq(passed)), child)


SQL = TransformType(
    name="Sql",
    package=None,
    keys=(key("query", "SELECT … FROM source, over each row.", "Query", validator=not_blank),),
    apply=_apply,
    takes_predicate=False,
)
