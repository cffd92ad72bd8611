"""The standard error of commands: error messages and the log."""

import logging

import typer

from coterie.config.secrets import hide_secrets


def print_errors(*messages: str) -> None:
    """Print each of ``messages`` to standard error, on a line that begins with "coterie: "."""
    for message in messages:
        typer.echo(f"coterie: {hide_secrets(message)}", err=True)


class _SecretHidingFormatter(logging.Formatter):
    """Formats log lines, and replaces in them the secret values that config providers have returned."""

    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


def log_to_stderr(level: str) -> None:
    """Send log messages of ``level`` and above to standard error, without known noise of libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(_SecretHidingFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    for logger_name in ("httpx", "httpcore", "py4j", "uvicorn"):
        logging.getLogger(logger_name).setLevel(logging.WARNING)
    # A peer may close its side right after the TLS handshake. asyncio's streams set their TLS flag only after that turn
    # of the loop, and so warn of their own return value. The connection is closed correctly all the same.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())
    # py4j logs errors with a trace and also raises them. The code that called the ending JVM reports them.
    logging.getLogger().addFilter(lambda record: record.getMessage() != "Exception while sending command.")
