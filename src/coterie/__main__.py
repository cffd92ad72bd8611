"""The command ``coterie``, also as ``python -m coterie``: nothing is imported before an interrupt is a quiet end."""

import sys


def main() -> None:
    try:
        from coterie.cli import app

        app.main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
