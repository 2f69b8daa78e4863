#!/usr/bin/env bash
# Make what stands in for the base of deploy/Dockerfile, for the tests of the image: no registry of images is needed, a Debian mirror is.
#
#   tests/integration/deploy/image_base.sh HOME      does nothing where it is there already
#
# A minimal Debian with its own Python 3.11, imported into buildah's storage below HOME under the name that the Dockerfile asks for. It
# installs packages from /wheels only: the test puts there what the machine's own pip has downloaded. Needs root, buildah and debootstrap.
set -euo pipefail

home=$1
base=docker.io/library/python:3.11-slim
suite=bookworm # its Python is 3.11
mirror=http://deb.debian.org/debian

say() { printf 'image base: %s\n' "$*"; }
store() { buildah --root "$home/images" --runroot "$home/images-run" "$@"; }

for program in buildah debootstrap; do
    command -v "$program" >/dev/null || { say "$program is missing: install the package $program"; exit 1; }
done
[ "$(id -u)" -eq 0 ] || { say "building an image needs root here: run make test-image as root"; exit 1; }
if store inspect --type image "$base" >/dev/null 2>&1; then
    say "$base is in $home/images"
    exit 0
fi
say "making $base out of $suite"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,python-is-python3,ca-certificates "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 ||
    { tail -5 "$work/log"; exit 1; }
rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$work/root/etc/pip.conf"
container=$(store from scratch)
store add -q "$container" "$work/root" / >/dev/null
store commit -q "$container" "$base" >/dev/null
store rm "$container" >/dev/null
say "ready"
