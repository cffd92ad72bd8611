"""What a command says beside its result: complaints and the log, both on standard error."""

import logging

import typer


def complain(*sentences: str) -> None:
    for sentence in sentences:
        typer.echo(f"coterie: {sentence}", err=True)


def log_to_stderr(level: str) -> None:
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "py4j", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # A peer that ends its side right behind the handshake of TLS: asyncio's streams learn only after that turn of the
    # loop that they are over TLS, and warn of their own answer. The connection ends as it should.
    logging.getLogger("asyncio").addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())
    # py4j logs, with a trace, what it raises as well: whoever asked a JVM that goes says so.
    logging.getLogger().addFilter(lambda record: record.getMessage() != "Exception while sending command.")
