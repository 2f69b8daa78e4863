"""Clients cannot tell kvgate from the engine: every route of a real one is known, and answers the same through kvgate.

The table (routes, what kvgate does with them, cases that were the same) is printed; KVGATE_ROUTES_TABLE names a file to write it to.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy.wire.routes import CLOSED_PATHS, OWN_PATHS, SAME_PATHS, closed_path, kind_of
from tests.bench.kvgate_process import KvgateProcess, kvgate_process
from tests.vllm.conftest import HOME, VllmFactory, VllmServer
from tests.vllm.transparent import Case, Table, ask, difference, run, served_routes, unknown_to_the_table

pytestmark = pytest.mark.vllm

LIST_S_MAX = 600  # most of it is importing vLLM: ten seconds on a free machine, minutes on a busy one
DATA = os.environ.get("KVGATE_TEST_DATA")
# Routes that a flag of the engine's configuration object or another package brings, which a bare app does not show.
CONFIGURED = {"/start_profile", "/stop_profile", "/cohere/v2/chat", "/cohere/v2/chat/render"}
PAGE = "https://page.example"
POOLING = ("--runner", "pooling", "--convert", "embed", "--allowed-origins", f'["{PAGE}"]')


@pytest.fixture(scope="module")
def gate(replica: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvgateProcess]:
    with kvgate_process(replica.base_url, replica.model_dir, tmp_path_factory.mktemp("kvgate")) as running:
        yield running


def shown(table: Table, name: str) -> None:
    """Print the table, and add it to the file that is asked for."""
    print(f"\n## {name}\n\n{table}")  # noqa: T201
    target = os.environ.get("KVGATE_ROUTES_TABLE")
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(f"## {name}\n\n{table}\n\n")


async def test_everything_that_is_relayed_is_the_same(replica: VllmServer, gate: KvgateProcess) -> None:
    table = await run(replica.base_url, gate.base_url, Path(DATA) if DATA else None, replica.served_name)
    shown(table, "A generating model")
    assert unknown_to_the_table(table.kinds) == []
    assert table.cases.total() >= 850
    assert {200, 307, 400, 404, 405} <= set(table.statuses)
    assert table.differences == []


@pytest.fixture(scope="module")
def pooling(vllm_server: VllmFactory) -> VllmServer:
    """The same model turned into an embedding one, in development mode: it has the routes that control an engine, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            patch.setenv(name, "1")
        return vllm_server(256, *POOLING)


async def test_a_pooling_model_is_the_same_too(pooling: VllmServer, tmp_path: Path) -> None:
    """Embedding, classifying, scoring and pooling routes."""
    with kvgate_process(pooling.base_url, pooling.model_dir, tmp_path) as gate:
        table = await run(pooling.base_url, gate.base_url, None, pooling.served_name)
        for page in (
            PAGE,
            "https://other.example",
        ):  # kvgate's own answer; a browser must be told of it what the engine would tell
            case = Case("/v1/models", "GET", "/v1/models", b"", (("origin", page),))
            direct, through = [await ask(url, case, "page") for url in (pooling.base_url, gate.base_url)]
            unsigned = replace(direct, headers=tuple(pair for pair in direct.headers if pair[0] != "server"))
            assert (difference(unsigned, through), page == PAGE) == ("", "access-control-allow-origin" in dict(direct.headers))
    shown(table, "A pooling model, in development mode")
    assert unknown_to_the_table(table.kinds) == []
    assert {path for _, path in table.kinds} >= {"/pooling", "/v1/embeddings", "/v2/embed", "/sleep", "/v1/load_lora_adapter"}
    assert table.differences == []


async def test_control_of_a_real_engine_is_closed_until_it_is_opened(pooling: VllmServer, tmp_path: Path) -> None:
    """By the policy, to the admin token, for a named replica; then the answer is the engine's."""
    token, policy = tmp_path / "token", tmp_path / "opened.yaml"
    token.write_text("a-token-for-this-test")
    policy.write_text("passthrough: {allow: [/is_sleeping, /reset_prefix_cache]}\nrelay: {drain_accept: 0s}\n")
    routes = [(method, path) for method, path in await served_routes(pooling.base_url) if closed_path(path)]
    assert len(routes) > 15
    with kvgate_process(
        pooling.base_url, pooling.model_dir, tmp_path, "--policy", str(policy), "--admin-token-file", str(token)
    ) as gate:
        name = urlsplit(pooling.base_url).netloc
        named = (("x-kvgate-admin-token", token.read_text()), ("x-kvgate-replica", name))
        for method, path in routes:
            encoded = path.replace("e", "%65")  # the same path to the engine, and so to kvgate
            for spelled in (path, encoded, "/" + path, path + "/", path.upper(), "/x/.." + path, encoded.replace("%", "%25")):
                bare = await ask(gate.base_url, Case(path, method, spelled), "bare")
                opened = path in {"/is_sleeping", "/reset_prefix_cache"} and spelled in {path, encoded}
                assert (bare.status, spelled) == (401 if opened else 403, spelled)
        for method, path in (("GET", "/is_sleeping"), ("POST", "/reset_prefix_cache")):
            direct = await ask(pooling.base_url, Case(path, method, path, b"", ()), "control")
            through = await ask(gate.base_url, Case(path, method, path, b"", named), "control")
            assert (direct.status, difference(direct, through)) == (200, "")
        everywhere = await ask(
            gate.base_url, Case("/is_sleeping", "GET", "/is_sleeping", b"", (named[0], ("x-kvgate-replica", "all"))), "all"
        )
        assert json.loads(everywhere.frames[0]) == {name: {"status": 200, "body": {"is_sleeping": False}}}


def test_the_table_names_every_route_of_every_flag_and_no_other() -> None:
    done = subprocess.run(
        [str(HOME / "venv" / "bin" / "python"), str(Path(__file__).parent / "list_routes.py")],
        capture_output=True, text=True, timeout=LIST_S_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    routes = [(method, path) for method, path in json.loads(done.stdout)]
    shown(Table(kinds={(method, path): kind_of(method, path) for method, path in routes}), "Every flag")
    assert unknown_to_the_table(routes) == []
    served = {path.replace("{response_id}", "{id}").replace("{adapter_name}", "{name}") for _, path in routes}
    pooling = {path for path in SAME_PATHS if any(word in path for word in ("embed", "pooling", "classify", "score", "rerank"))}
    of_kvgate = {"/ready"}
    assert CLOSED_PATHS | set(SAME_PATHS) | set(OWN_PATHS) == served | pooling | of_kvgate | CONFIGURED


@pytest.mark.parametrize("path", ["/scale_elastic_ep", "/%73cale_elastic_ep", "/scale_elastic_ep/"])
async def test_control_does_not_reach_a_real_engine(gate: KvgateProcess, path: str) -> None:
    answer = await ask(gate.base_url, Case(path, "POST", path, b"{}"), "control")
    assert (answer.status, json.loads(answer.frames[0])["error"]["code"]) == (403, "route_closed")


async def test_an_unknown_model_is_404_as_it_is_to_the_engine(replica: VllmServer, gate: KvgateProcess) -> None:
    body = json.dumps({"model": "nobody's", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).encode()
    case = Case("/v1/chat/completions", "POST", "/v1/chat/completions", body)
    assert [(await ask(url, case, "unknown")).status for url in (replica.base_url, gate.base_url)] == [404, 404]
