#!/bin/sh
# Finds what a build of diskq needs, and prints the Python to use.
# Where something is missing: one sentence on stderr that says what, and how to get it.
#
# $PYTHON, where set, is the only candidate; otherwise the first complete one of the list is taken.

set -eu

CANDIDATES="python3.13 python3.12 python3.11 python3"

missing() {
    echo "diskq: $1" >&2
    exit 1
}

# Succeeds where $1 runs and is new enough. (A name may be there and not run: version managers leave such.)
is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

has_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

has_headers() {
    "$1" -c 'import os, sys, sysconfig
paths = sysconfig.get_paths()
sys.exit(not any(os.path.exists(os.path.join(paths[k], "Python.h")) for k in ("include", "platinclude")))' \
        >/dev/null 2>&1
}

find_python() {
    problem="needs Python 3.11 or newer and found none: \`apt install python3\` (Debian), \`dnf install python3\` (Fedora), \`brew install python\` (macOS), or name yours with \`make PYTHON=/path/to/python3\`."
    if [ -n "${PYTHON:-}" ]; then
        CANDIDATES=$PYTHON
        problem="PYTHON=$PYTHON does not run or is older than 3.11: name another one, or leave PYTHON unset."
    fi
    for candidate in $CANDIDATES; do
        is_new_enough "$candidate" || continue
        if ! has_venv "$candidate"; then
            problem="$candidate has no venv and ensurepip modules: \`apt install python3-venv\` (Debian), \`dnf install python3-libs\` (Fedora), \`brew install python\` (macOS)."
        elif ! has_headers "$candidate"; then
            problem="$candidate has no C headers (Python.h): \`apt install python3-dev\` (Debian), \`dnf install python3-devel\` (Fedora), \`brew install python\` (macOS)."
        else
            command -v "$candidate"
            return
        fi
    done
    missing "$problem"
}

find_compiler() {
    for compiler in ${CC:-cc gcc clang}; do
        if command -v "$compiler" >/dev/null 2>&1 &&
            echo '#include <stdlib.h>' | "$compiler" -fsyntax-only -x c - >/dev/null 2>&1; then
            return
        fi
        [ -n "${CC:-}" ] && break # the rest of $CC is its options
    done
    missing "needs a C compiler and found none that works: \`apt install gcc libc6-dev\` (Debian), \`dnf install gcc\` (Fedora), \`xcode-select --install\` (macOS)."
}

find_compiler
find_python
