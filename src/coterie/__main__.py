"""``python -m coterie``: the same as the command ``coterie``."""

from coterie.cli.app import main

if __name__ == "__main__":
    main()
