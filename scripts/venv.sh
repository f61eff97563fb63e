#!/bin/sh
# Make or refresh this checkout's own virtual environment.
#
#   scripts/venv.sh LEVEL        LEVEL: demo | notebooks | dev   (each holds what the one before it holds)
#
# Run again, it takes well under a second: a stamp inside the environment records what was installed. The stamp holds
# checksums and not dates, so a checkout, a copy or a `touch` reinstalls nothing, and a change of pyproject.toml, of
# constraints.txt, of the Python or of the folder does. An environment whose Python is gone or out of range is made
# anew; one that you made yourself is used as it is.
#
#   PYTHON=...  the Python to make it with          VENV=...  where it goes (default .venv)
set -eu

level=${1:?"usage: scripts/venv.sh demo|notebooks|dev"}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
venv=${VENV:-.venv}
unset PYTHONHOME || true

say() { printf 'nanovllm: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

in_range() { # does this Python start, and is it one we support?
    "$@" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

# The Python that you get by default comes first when it is in range. Each one is started, not only looked for: a
# version manager's shim can stand on PATH for a version that is not active.
find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if in_range "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON does not start, or is not Python 3.11, 3.12 or 3.13: name one that is."
    fi
    fail "no Python 3.11, 3.12 or 3.13 found on PATH: install one, or name it with 'make PYTHON=/path/to/python3.12 ...'."
}

make_venv() {
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || fail \
        "$python has no venv module (or no ensurepip): install it (Debian and Ubuntu: the package python3-venv) and run this again."
    if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
        fail "$venv is there but is no virtual environment: move it away, or name another place with VENV=..."
    fi
    say "making $venv with $("$python" --version 2>&1)"
    "$python" -m venv --clear "$venv"
}

# What an up-to-date stamp reads. The folder is in it because an editable install records where the source lies.
fingerprint() {
    "$venv/bin/python" -c 'import sys; print(sys.version)'
    printf '%s\n' "$root"
    cksum pyproject.toml constraints.txt scripts/venv.sh
}

case $level in
    demo) spec=. covers="demo" ;;
    notebooks) spec='.[notebooks]' covers="demo notebooks" ;;
    dev) spec='.[dev]' covers="demo notebooks dev" ;;
    *) fail "unknown level '$level': demo, notebooks or dev" ;;
esac

if ! { in_range "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    make_venv
fi

wanted=$(fingerprint)
stamp="$venv/.nanovllm-$level"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

say "installing nanovllm ($level) into $venv; the first time this downloads PyTorch"
rm -f "$venv"/.nanovllm-*
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$spec" || fail \
    "the installation failed (its messages stand above). It needs a network, or a wheel of each package in constraints.txt, and about 3 GB of disk."
for done_level in $covers; do
    printf '%s\n' "$wanted" >"$venv/.nanovllm-$done_level"
done
