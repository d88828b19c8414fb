#!/usr/bin/env bash
# Print the Python to make environments with, once all that the system must bring is there:
# Python 3.10 to 3.13 with venv, and a C++17 compiler for Horovod. What is missing is installed for
# root in CI on Debian and its kin; everyone else gets the line to run.
set -euo pipefail

# The first candidate that can make an environment. Programs are tried, not just found: a pyenv shim
# exists for every version that pyenv has, and fails for those that are not switched on.
find_python() {
    local candidate version candidates=(python3.13 python3.12 python3.11 python3.10 python3)
    if [[ -n ${PYTHON:-} ]]; then
        candidates=("$PYTHON")
    fi
    python='' without_ensurepip='' unsupported=''
    for candidate in "${candidates[@]}"; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if [[ ! $version =~ ^3\.1[0-3]$ ]]; then
            unsupported=$version
            continue
        fi
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            python=$candidate
            return
        fi
        without_ensurepip=${without_ensurepip:-$version}
    done
}

has_compiler() {
    c++ -std=c++17 -x c++ -fsyntax-only - <<<'#include <optional>' 2>/dev/null
}

# Fill `missing` with words for people and `packages` with Debian's names.
look() {
    missing=() packages=()
    find_python
    if [[ -z $python && -n $without_ensurepip ]]; then
        missing+=("the modules venv and ensurepip of Python $without_ensurepip")
        packages+=("python$without_ensurepip-venv")
    elif [[ -z $python ]]; then
        missing+=("Python 3.10, 3.11, 3.12 or 3.13${unsupported:+ (${PYTHON:-python3} is $unsupported)}")
        # Where the system's own Python is another one, its packages do not help.
        if [[ -z $unsupported ]]; then
            packages+=(python3 python3-venv)
        fi
    fi
    if ! has_compiler; then
        missing+=("a C++17 compiler")
        packages+=(g++)
    fi
    ((${#missing[@]} == 0))
}

install() {
    echo "==> Installing system packages: ${packages[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${packages[@]}"
}

if ! look && [[ ${CI:-} == true ]] && ((EUID == 0 && ${#packages[@]})) && command -v apt-get >/dev/null; then
    install >&2
    look || true
fi

if ((${#missing[@]})); then
    printf 'Missing on this machine: %s.\n' "${missing[@]}"
    if [[ -n $unsupported && -z $python$without_ensurepip ]]; then
        echo "Give the program of one of these Pythons:  make PYTHON=/path/to/python3.12"
    fi
    if ! command -v apt-get >/dev/null; then
        echo "Install it with this system's package manager."
    elif ((${#packages[@]})); then
        echo "Run:  $( ((EUID == 0)) || echo 'sudo ')apt-get install ${packages[*]}"
    fi
    exit 1
fi >&2
echo "$python"
