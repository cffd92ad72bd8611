"""``Sql``: a SELECT over each row. The query does not see the metadata columns of the rows, which are kept unchanged.

The query is analysed and never executed. Its plan must be a chain of projections, filters and generators over the view
``source``. The same chain is then applied to the rows with their metadata columns, which are added to each projection.
Attributes are bound by ids, so the query's own columns are the same in both plans.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import not_blank
from coterie.spark.end_config import EndConfig
from coterie.spark.record import hidden_names, visible
from coterie.spark.smt.kind import Kind, Side, key

VIEW = "source"

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
"""The nodes of a plan that do not work row by row, with their names in error messages for users."""


def _apply(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    query = settings.read(SQL.definition, "query", str)
    # The view is in the session of this task only, so it cannot replace the view of another task.
    visible(rows).createOrReplaceTempView(VIEW)
    try:
        analysed = _analysed(rows.sparkSession, query)
        return _dataset(rows.sparkSession, _on_rows(rows, analysed))
    finally:
        rows.sparkSession.catalog.dropTempView(VIEW)


def _analysed(spark: SparkSession, query: str) -> Any:
    """The resolved plan of the query."""
    session, jvm = spark._jsparkSession, spark._jvm
    assert jvm is not None
    state = session.sessionState()
    parsed = state.sqlParser().parsePlan(query)
    skip = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    return state.executePlan(parsed, skip).analyzed()


def _dataset(spark: SparkSession, plan: Any) -> DataFrame:
    jvm = spark._jvm
    assert jvm is not None
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


def _on_rows(rows: DataFrame, plan: Any) -> Any:
    """The chain of nodes in ``plan``, applied to the plan of ``rows`` instead of the view.

    :raises ValueError: when the plan is not a chain of projections, filters and generators over the view.
    """
    hidden = hidden_names(rows)
    own = rows._jdf.queryExecution().analyzed()
    chain = list(_chain(plan))
    for node in reversed(chain):
        own = _with_child(rows.sparkSession, node, own, hidden)
    return own


def _chain(plan: Any) -> Iterator[Any]:
    """The nodes above the view, from the top, without aliases of subqueries in FROM: the plan is already resolved."""
    while True:
        name = str(plan.nodeName())
        if not plan.subqueries().isEmpty():
            raise ValueError("it has a subquery in an expression; a query works row by row")
        if name == "SubqueryAlias":
            if str(plan.identifier().name()) == VIEW and str(plan.child().nodeName()) == "View":
                return
            plan = plan.child()
            continue
        if name not in ("Project", "Filter", "Generate"):
            what = _REFUSED.get(name)
            if what is None:
                raise ValueError(f"it is not a SELECT … FROM {VIEW} that works row by row ({name})")
            raise ValueError(f"it uses {what}; a query works row by row and reads only {VIEW}")
        yield plan
        plan = plan.child()


def _with_child(spark: SparkSession, node: Any, child: Any, hidden: list[str]) -> Any:
    jvm = spark._jvm
    assert jvm is not None
    seq = jvm.PythonUtils.toSeq
    if str(node.nodeName()) != "Project" or not hidden:
        return node.withNewChildren(seq([child]))
    output = child.output()
    passed = [one for one in map(output.apply, range(output.size())) if str(one.name()) in hidden]
    return node.copy(node.projectList().appendedAll(seq(passed)), child)


SQL = Kind(
    name="Sql",
    package=None,
    keys=(key("query", "SELECT … FROM source, over each row.", "Query", check=not_blank),),
    apply=_apply,
    takes_predicate=False,
)
