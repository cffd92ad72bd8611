"""A failure's first line names the cause; ``test_runtime.py`` has those of a real Spark."""

import errno
from dataclasses import dataclass

from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark.failures import error_message, java_error_message, message_with_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Throwable:
    """A Java exception as py4j shows it."""

    message: str | None
    cause: "Throwable | None" = None

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> "Throwable | None":
        return self.cause


def test_an_error_of_coterie_is_its_message_without_a_stack_trace() -> None:
    assert message_with_trace(WorldError("the folder is gone")) == "the folder is gone"
    assert message_with_trace(ConfigError({"a": ["no"]})) == "a: no"


def test_any_other_error_is_one_line_and_its_stack_trace() -> None:
    try:
        raise OSError(errno.ENOENT, "No such file or directory", "/out")
    except OSError as error:
        first, blank, *stack = message_with_trace(error).splitlines()
    assert (first, blank) == ("No such file or directory: /out", "")
    assert stack[0] == "Traceback (most recent call last):"
    assert error_message(ValueError("no\nnumber")) == "ValueError: no number"


def test_an_exception_of_a_python_function_is_reported_with_file_and_line() -> None:
    message = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/pyspark/worker.py", line 3, in main
    process()
  File "/acme/rates.py", line 31, in convert
    raise LookupError("no rate for XYZ")
LookupError: no rate for XYZ

\tat org.apache.spark.api.python.BasePythonRunner
Driver stacktrace:"""
    expected = "A function in Python raised LookupError: no rate for XYZ (rates.py, line 31, in convert)"
    assert java_error_message(Throwable(message=message)) == expected
    assert java_error_message(Throwable(message="Lost task", cause=Throwable(message=message))) == expected
    # Spark cuts long messages.
    cut = "PythonException: Traceback (most recent call last):\n"
    assert java_error_message(Throwable(message=cut)) == cut.strip()
    crashed = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert "it called os._exit, crashed" in java_error_message(Throwable(message=crashed))


def test_java_exceptions_are_reported_from_the_outermost_to_the_cause_without_repetition() -> None:
    number = Throwable(message='For input string: "x"')
    malformed = Throwable(message="Malformed records.\n  Mode: FAILFAST. SQLSTATE: 22023", cause=number)
    repeated = Throwable(message=malformed.message, cause=malformed)
    reading = Throwable(message="Cannot read a.csv. SQLSTATE: KD001\n\tat java.lang.Thread.run", cause=repeated)
    expected = 'Cannot read a.csv. Cause: Malformed records. Mode: FAILFAST. Cause: For input string: "x"'
    assert java_error_message(reading) == expected
    assert java_error_message(Throwable(message=None)) == "Spark gives no reason"
    assert len(java_error_message(Throwable(message="x" * 5_000))) == 601
