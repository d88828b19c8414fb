#!/usr/bin/env bash
# Usage: scripts/venv.sh ENVIRONMENT EXTRAS
# Bring a virtual environment up to date with setup.cfg; do nothing, fast, when it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=$1 extras=$2
checkout=$(pwd -P)
python=$environment/bin/python
stamp=$environment/.stamp-packages
unfinished=$environment/.unfinished
log=$environment/pip.log

if [[ $checkout =~ [[:space:]:\"\'\$\\] ]]; then
    echo "The folder '$checkout' has a space, colon, quote, dollar or backslash in its name, which" \
        "compilers and MPI do not survive. Move the checkout and try again." >&2
    exit 1
fi

contents() {
    echo "$checkout $extras"
    sha256sum setup.cfg setup.py pyproject.toml fittrain/version.py
}

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

# Why an existing environment cannot be kept; nothing if it can.
broken_because() {
    if [[ -e $unfinished ]]; then
        echo "its set-up was interrupted"
    elif ! "$python" -m pip --version &>/dev/null; then
        echo "its Python no longer works"
    elif ! head -n 2 "$environment/bin/pip" | grep -qsF "$checkout/$environment/"; then
        echo "it was made for another folder"
    elif [[ -n ${PYTHON:-} && $(version_of "$python") != "$(version_of "$PYTHON")" ]]; then
        echo "it was made with another Python than PYTHON=$PYTHON"
    fi
}

create() {
    local base
    base=$(scripts/system.sh)
    echo "==> Making $environment with $("$base" --version)"
    "$base" -m venv --clear "$environment"
}

# Without a terminal pip shows no progress bars; its large downloads are shown instead.
install() {
    local command=("$python" -m pip install --disable-pip-version-check --no-input -e ".[$extras]")
    export PIP_USER=0
    if [[ -t 1 ]]; then
        "${command[@]}"
    elif ! "${command[@]}" 2>&1 | tee "$log" | sed -unE \
        -e 's#^ +(Downloading|Using cached) ([^ ]*/)?([^ /-]+-[^ -]+)-[^ ]+ (\([0-9.]+ MB\)).*#    \3 \4#p' \
        -e 's#^(Installing collected packages):.*#    unpacking#p'; then
        tail -n 30 "$log" >&2
        return 1
    fi
}

if [[ -e $environment/pyvenv.cfg ]]; then
    if [[ ! -e $unfinished && -z ${PYTHON:-} ]] && contents | cmp -s - "$stamp" &&
        "$python" -c ''; then
        exit 0
    fi
    reason=$(broken_because)
    if [[ -z $reason ]] && contents | cmp -s - "$stamp"; then
        exit 0
    fi
    if [[ -n $reason ]]; then
        echo "==> Making $environment anew: $reason"
        create
    fi
else
    create
fi

touch "$unfinished"
rm -f "$stamp"
echo "==> Installing Python packages into $environment (450 MB the first time, about a minute)"
install
contents >"$stamp"
rm "$unfinished"
