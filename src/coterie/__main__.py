"""The command ``coterie``, also as ``python -m coterie``.

The program is imported inside `main`, which catches an interrupt: Ctrl-C ends the process without a traceback, even
during the imports.
"""

import sys


def main() -> None:
    try:
        from coterie.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
