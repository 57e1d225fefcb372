# Shared by quickstart.sh and test.sh, to be sourced with the repository's root in `root`.
#
#   setup_environment EXTRAS    makes $root/.venv with retool and its EXTRAS (comma-separated) installed, once
#
# The second call installs nothing, unless pyproject.toml or the torch requirement has changed.
# RETOOL_TORCH    the requirement for torch, such as torch==2.13.0+cpu; this line is the only place that names a default
# RETOOL_PYTHON   the interpreter that makes the environment
RETOOL_TORCH=${RETOOL_TORCH:-torch==2.13.0}

venv=$root/.venv
venv_python=$venv/bin/python

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    recent=
    for candidate in ${RETOOL_PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        is_recent "$candidate" || continue
        recent=$candidate
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    [ -z "$recent" ] || fail "$recent has no venv module. On Debian and Ubuntu: apt-get install python3-venv"
    [ -z "${RETOOL_PYTHON:-}" ] || fail "RETOOL_PYTHON=$RETOOL_PYTHON is no Python 3.11 or newer."
    fail "Python 3.11 or newer is needed, and none was found. Install one, or name it: RETOOL_PYTHON=/path/to/python3"
}

make_venv() {
    if "$venv_python" -c 'import pip' >/dev/null 2>&1; then
        is_recent "$venv_python" || fail "$venv was made with a Python older than 3.11. Remove it and start again."
        return
    fi
    found=$(find_python)
    printf 'Making %s with %s\n' "$venv" "$found" >&2
    "$found" -m venv --clear "$venv"
}

install() {
    "$venv_python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
}

setup_environment() {
    key=$({ cat "$root/pyproject.toml"; printf '%s\n' "$RETOOL_TORCH" "$root"; } | cksum)
    for stamp in "$venv"/.setup-*; do
        case "${stamp##*/.setup-}," in
            "$1",*) [ "$(cat "$stamp")" != "$key" ] || return 0 ;;
        esac
    done
    make_venv
    rm -f "$venv"/.setup-*
    printf 'Installing %s and retool[%s]; this takes a few minutes, once.\n' "$RETOOL_TORCH" "$1" >&2
    install "$RETOOL_TORCH"
    # Nothing that follows may exchange it for another build.
    "$venv_python" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
        >"$venv/torch-constraint.txt"
    install --constraint "$venv/torch-constraint.txt" --editable "$root[$1]"
    printf '%s\n' "$key" >"$venv/.setup-$1"
}
