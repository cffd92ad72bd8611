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
