# install  make .venv and put kvgate and its test tools into it
# demo     the point of kvgate in two minutes: the same load without and with it
# test     lint, types, floors and the default tests
# test-redis  the tests against a real redis-server, which must be installed
# test-fronts  the tests behind a real nginx, which must be installed, and a real Envoy and LiteLLM (sets them up: 900 MB, once)
# test-deploy  what deploy/ ships against real helm, kubectl, schemas (sets them up: 250 MB, once) and systemd; as root
# test-image  build the image with buildah and run it (as root, with the right to mount; sets up a Debian to build on: 300 MB, once)
# test-vllm  the tests against a real vLLM on this CPU (sets it up: 3.4 GB, once)
# test-observability  the tests with a real Prometheus and Chromium, which must be installed
# bench-relay  what the data path costs beside nginx (apt) and vllm-router (PyPI; or VLLM_ROUTER=PATH), into tests/bench/RELAY.md: six minutes
# bench-admission  the whole protocol in virtual time, into tests/bench/RESULTS.md: about an hour (part of it: ARGS="--only saturated")
# fuzz     let libFuzzer look for bytes that break a reader of proxy/wire or proxy/config: SECONDS=60 for each of tests/fuzz/targets.py
# audit    ask PyPI for known faults of every dependency, as pinned and at the lowest version allowed; news alone makes it fail, so CI does not run it
# render-kubernetes  bring the plain manifests into step with the chart
# lint     ruff, mypy, import floors
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-redis test-fronts test-deploy test-image test-observability test-vllm bench-relay bench-admission fuzz audit render-kubernetes lint fix

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvgate needs Python 3.11 or newer: set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -U 'pip>=25.1'
	$(BIN)/python -m pip install -q -c constraints.txt --group dev -e .
	@touch $@

demo: $(STAMP)
	$(BIN)/kvgate demo

lint: $(STAMP)
	$(BIN)/ruff check proxy tests deploy
	$(BIN)/ruff format --check proxy tests deploy
	$(BIN)/mypy
	$(BIN)/mypy deploy/grafana/*.py
	$(BIN)/lint-imports

fix: $(STAMP)
	$(BIN)/ruff check --fix proxy tests deploy
	$(BIN)/ruff format proxy tests deploy
	$(BIN)/python -m proxy.config.json_schema policies

test: lint
	$(BIN)/python -m pytest -q

test-redis: $(STAMP)
	$(BIN)/python -m pytest -q -m 'redis and not slow'

test-fronts: $(STAMP)
	tests/integration/fronts/setup.sh
	$(BIN)/python -m pytest -q -m fronts tests/integration/fronts

test-deploy: $(STAMP)
	tests/integration/deploy/setup.sh
	$(BIN)/python -m pytest -q -m deploy tests/integration/deploy

test-image: $(STAMP)
	tests/integration/deploy/image_base.sh $${KVGATE_DEPLOY_HOME:-$(CURDIR)/.kvgate/deploy}
	$(BIN)/python -m pytest -q -m image tests/integration/deploy

render-kubernetes:
	tests/integration/deploy/setup.sh
	$${KVGATE_DEPLOY_HOME:-.kvgate/deploy}/bin/helm template kvgate deploy/kubernetes/chart >deploy/kubernetes/plain/kvgate.yaml

test-vllm: $(STAMP)
	tests/vllm/setup.sh
	$(BIN)/python -m pytest -q -m vllm tests/vllm

test-observability: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt --group observability
	$(BIN)/python -m pytest -q -m observability

fuzz: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt --group fuzz
	$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),60)

audit: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt --group audit
	$(BIN)/python deploy/audit.py

bench-relay: $(STAMP)
	$(BIN)/python -m tests.bench.relay_peers $(ARGS)

bench-admission: $(STAMP)
	$(BIN)/python -m pip install -q -c constraints.txt --group bench
	$(BIN)/python -m tests.bench.admission $(ARGS)
