"""The console on which commands print their tables and sentences."""

from rich.console import Console

_WIDTH_MAX = 100_000


def make_console() -> Console:
    """A console on standard output that prints each row and each sentence as one line, however long. A terminal
    continues a long line on its next row. So names and addresses can be copied, and are found with grep, at any width.

    The console prints the code of an emoji, such as :boom:, unchanged, because names may contain one.
    """
    return Console(highlight=False, emoji=False, soft_wrap=True, width=_WIDTH_MAX)
