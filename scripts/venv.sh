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
        echo "the last set-up did not finish"
    elif ! "$python" -c 'import pip' &>/dev/null; then
        echo "the old one's Python no longer works"
    elif ! grep -qsF -e "!$checkout/$python" -e " $checkout/$python" "$environment/bin/pip"; then
        echo "the old one was made for another folder"
    elif [[ -n ${PYTHON:-} && $(version_of "$python") != "$(version_of "$PYTHON")" ]]; then
        echo "the old one was made with Python $(version_of "$python")"
    fi
}

create() {
    local base
    base=$(scripts/system.sh)
    echo "==> Making $environment with $("$base" --version)${1:+ ($1)}"
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

# Held by pip too, so by one that outlives a killed make. Two set-ups at once would mix their files.
exec 9>.venv.lock
if ! flock --nonblock 9; then
    echo "==> Waiting for another set-up of this checkout to end"
    flock 9
fi

if [[ ! -e $environment/pyvenv.cfg ]]; then
    create
else
    reason=$(broken_because)
    if [[ -n $reason ]]; then
        create "$reason"
    elif contents | cmp -s - "$stamp"; then
        exit 0
    fi
fi

touch "$unfinished"
rm -f "$stamp"
echo "==> Installing Python packages into $environment (450 MB the first time, about a minute)"
install
contents >"$stamp"
rm "$unfinished"
