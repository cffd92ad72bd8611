"""Error texts of a failed query: its cause in one line, then the stack trace."""

import re
import traceback
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from coterie.nouns.errors import CoterieError

_MESSAGE_MAX = 600
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: P0001", re.DOTALL)
_ENDED = "Python worker exited unexpectedly"
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?=\n\n|\n\s*at |\Z)", re.DOTALL)
_PLACE = re.compile(r' +File "(.+)", line (\d+), in (\S+)')
_CAUSES_MAX = 3
"""Number of messages of outer exceptions in one text; they name the file, the error in it and the value."""


def trace_of(error: BaseException) -> str:
    """The cause in one line, followed by the stack trace unless ``error`` is a :class:`CoterieError`."""
    if isinstance(error, CoterieError):
        return str(error)
    return f"{sentence_of(error)}\n\n{''.join(traceback.format_exception(error))}"


def sentence_of(error: BaseException) -> str:
    """The message of ``error`` in one line; for an error of Spark the messages of its Java causes."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    if (throwable := throwable_of(error)) is not None:
        return sentence_of_java(throwable)
    return str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {_one_line(str(error))}"


def sentence_of_java(throwable: Any) -> str:
    """The messages of a Java exception and of its causes, in one line."""
    messages: list[str] = []
    while throwable is not None and len(messages) < _CAUSES_MAX:
        whole = throwable.getMessage() or ""
        if (sentence := _python_sentence(whole)) is not None:
            return sentence
        message = _one_line(whole)
        if message and not any(message in known or known in message for known in messages):
            messages.append(message)
        throwable = throwable.getCause()
    return " Cause: ".join(messages) or "Spark gives no reason"


def _python_sentence(message: str) -> str | None:
    """The exception of a user's function with its position, or that the function's process ended; None when ``message``
    contains neither."""
    if _ENDED in message:
        return (
            "A function's Python process ended before the function had returned: it called os._exit, crashed, or was "
            "killed for its memory"
        )
    tracebacks = _TRACEBACK.findall(message)
    if not tracebacks:
        return None
    lines = [line for line in tracebacks[-1].splitlines() if line.strip()]
    raised = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1].strip())
    places = [found for line in lines if (found := _PLACE.match(line))]
    own = [place for place in places if "/pyspark/" not in place[1] and "/coterie/spark/" not in place[1]]
    where = f" ({Path(own[-1][1]).name}, line {own[-1][2]}, in {own[-1][3]})" if own else ""
    return f"A function in Python raised {_one_line(raised)}{where}"


def raised_sentence(error: BaseException) -> str | None:
    """The message of ``raise_error`` in an expression of a query, if that is the cause: a restart would not help."""
    found = _RAISED.search(str(error))
    return None if found is None else found[1]


def throwable_of(error: BaseException) -> Any | None:
    """The Java exception that an exception of PySpark or Py4J wraps, else None."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _one_line(message: str) -> str:
    """``message`` in one line, without the stack trace that some of Spark's messages contain."""
    text = " ".join(re.split(r"\n\s*at |\nDriver stacktrace", message)[0].split())
    text = re.sub(r" SQLSTATE: \w+$", "", text)
    return text if len(text) <= _MESSAGE_MAX else f"{text[:_MESSAGE_MAX]}…"
