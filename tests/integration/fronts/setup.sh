#!/usr/bin/env bash
# Set up the real LiteLLM proxy that the tests marked `fronts` need, in an environment of its own: it brings a hundred packages.
#
#   tests/integration/fronts/setup.sh     install what is missing; does nothing when all is there
#
# About 800 MB, once per machine, in $KVGATE_LITELLM_HOME (default: .kvgate/litellm in the checkout). nginx comes from the system.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
home=${KVGATE_LITELLM_HOME:-$root/.kvgate/litellm}
py=$home/venv/bin/python

say() { printf 'fronts setup: %s\n' "$*"; }

mkdir -p "$home"
exec 9>"$home/.lock" # two runs at once would install over each other
flock 9
want=$(sha256sum "$here/constraints.txt" | cut -c1-16)
if [ -f "$home/.installed" ] && [ "$(cat "$home/.installed")" = "$want" ]; then
    say "LiteLLM is installed in $home/venv"
    exit 0
fi
say "installing LiteLLM into $home/venv"
rm -rf "$home/venv" "$home/.installed"
"${PYTHON:-python3}" -m venv "$home/venv"
"$py" -m pip install -q -c "$here/constraints.txt" 'litellm[proxy]'
"$home/venv/bin/litellm" --version
printf '%s\n' "$want" >"$home/.installed"
say "ready"
