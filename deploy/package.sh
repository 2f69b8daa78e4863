#!/usr/bin/env bash
# Build what is released, into a folder: the sdist, the wheel made from that sdist, and a CycloneDX list of everything it brings.
#
#   deploy/package.sh [FOLDER]     (default: dist). Run it on the tag vVERSION: the version is the one in proxy/__init__.py, and a commit
#                                  with another tag is refused
#
# The bill is of a clean environment with every extra that a server uses, at the versions of constraints.txt.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "${1:-dist}"
out=$(cd "${1:-dist}" && pwd)
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/proxy/__init__.py")
tag=$(git -C "$root" describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null || true)
case $tag in
    "v$version") ;;
    "") echo "package.sh: this commit has no tag v$version: fine for a trial, not for a release" >&2 ;;
    *) echo "package.sh: the tag says $tag, proxy/__init__.py says $version: one of them is wrong" >&2; exit 1 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install -q -U 'pip>=25.1'
"$work/tools/bin/python" -m pip install -q --group "$root/pyproject.toml:release"
# The time of the last commit, so that the same commit makes the same bytes wherever it is built.
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 1577836800)
export SOURCE_DATE_EPOCH
"$work/tools/bin/python" -m build -q --outdir "$out" "$root"
wheel=$(ls -t "$out"/kvgate-*.whl | head -1)

"${PYTHON:-python3}" -m venv --without-pip "$work/clean"
"$work/tools/bin/python" -m pip --python "$work/clean/bin/python" install -q -c "$root/constraints.txt" "$wheel[redis,otel,kubernetes,dns,kv-events]"
"$work/tools/bin/cyclonedx-py" environment --pyproject "$root/pyproject.toml" --output-reproducible -o "${wheel%-py3-none-any.whl}.cdx.json" "$work/clean/bin/python"
ls -l "$out"
