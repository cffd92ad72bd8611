"""The trace of a failed query: its cause in one line, then the stack."""

import re
import traceback
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from coterie.nouns.errors import CoterieError

_MESSAGE_MAX = 600
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE: P0001", re.DOTALL)
_CAUSES_MAX = 3
"""The outermost exceptions with a message of their own: which file, what is wrong with it, with which value."""


def trace_of(error: BaseException) -> str:
    """The cause in one line, and the stack below it unless the error is one of ours."""
    if isinstance(error, CoterieError):
        return str(error)
    return f"{sentence_of(error)}\n\n{''.join(traceback.format_exception(error))}"


def sentence_of(error: BaseException) -> str:
    """What is wrong, in one line: of an error of Spark the messages of its causes."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    if (throwable := _throwable(error)) is not None:
        return sentence_of_java(throwable)
    return str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {_one_line(str(error))}"


def sentence_of_java(throwable: Any) -> str:
    """The messages of a Java exception and of what caused it, in one line."""
    messages: list[str] = []
    while throwable is not None and len(messages) < _CAUSES_MAX:
        message = _one_line(throwable.getMessage() or "")
        if message and not any(message in known or known in message for known in messages):
            messages.append(message)
        throwable = throwable.getCause()
    return " Cause: ".join(messages) or "Spark gives no reason"


def raised_sentence(error: BaseException) -> str | None:
    """What ``raise_error`` says in an expression of a query, if ``error`` comes of that; a restart would not help."""
    found = _RAISED.search(str(error))
    return None if found is None else found[1]


def _throwable(error: BaseException) -> Any | None:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _one_line(message: str) -> str:
    """Without the stack that Spark puts into some of its messages."""
    text = " ".join(re.split(r"\n\s*at |\nDriver stacktrace", message)[0].split())
    text = re.sub(r" SQLSTATE: \w+$", "", text)
    return text if len(text) <= _MESSAGE_MAX else f"{text[:_MESSAGE_MAX]}…"
