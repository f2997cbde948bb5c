#!/usr/bin/env bash
# install.sh PYTHON VENV REQUIREMENTS DEBIAN_PACKAGE...: a virtual environment with the pinned
# requirements and this checkout, and the Debian packages that are not there yet.
set -euo pipefail
python=$1 venv=$2 requirements=$3
shift 3

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

# Debian splits venv off its own Python.
"$python" -c 'import ensurepip' 2>/dev/null || set -- "$@" python3-venv
missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        say "not a Debian system: install the equivalents of ${missing[*]} yourself"
    elif [[ $(id -u) -ne 0 ]]; then
        say "missing Debian packages; first run: sudo apt-get install ${missing[*]}"
        exit 1
    else
        say "installing Debian packages: ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "$("$python" --version) found, Python 3.11 or newer is needed: make PYTHON=python3.12 ..."
    exit 1
}
say "creating $venv"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv>=0.9'
say "installing $(grep -c '==' "$requirements") packages"
uv=("$venv/bin/uv" pip install --python "$venv/bin/python")
"${uv[@]}" --require-hashes -r "$requirements"
"${uv[@]}" --quiet --no-deps -e .
