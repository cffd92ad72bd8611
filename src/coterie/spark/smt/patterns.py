"""Java's regular expressions, which are values of Connect's keys."""

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


def checked_whole_match_pattern(spark: SparkSession, regex: str) -> str:
    """A regular expression that a search in a text (Spark's ``rlike``) finds only if ``regex`` matches the whole text.

    :raises ValueError: when ``regex`` is not a valid Java regular expression.
    """
    assert spark._jvm is not None
    try:
        spark._jvm.java.util.regex.Pattern.compile(regex)
    except Py4JJavaError as error:
        raise ValueError(str(error.java_exception.getDescription())) from error
    return rf"\A(?:{regex})\z"
