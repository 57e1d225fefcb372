#!/bin/sh
# From a clone to a trained policy: makes .venv once, then runs `python -m retool.train` with the given arguments.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
. "$root/scripts/setup.sh"

setup_environment local
exec "$venv_python" -m retool.train "$@"
