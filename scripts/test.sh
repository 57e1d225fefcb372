#!/bin/sh
# All checks of the project: linter, formatter, type checker and tests. Arguments go to pytest.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/setup.sh"

setup_environment local,dev
cd "$root"
PATH=$venv/bin:$PATH
ruff check
ruff format --check
mypy
exec pytest "$@"
