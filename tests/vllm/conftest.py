"""Real vLLM servers on this CPU for the tests marked ``vllm``.

``vllm_server(kv_blocks)`` starts one, or hands out the one that runs with the same flags already: a start takes most of a minute.
``replica`` is the ordinary one. All stop when the session ends. Nothing here skips: without vLLM the tests fail, and say what to do.
"""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.support.processes import descendants_of

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("KVGATE_VLLM_HOME") or ROOT / ".kvgate" / "vllm")
BLOCK_SIZE = 32
CONTEXT_TOKENS = 4096
SEQUENCES_MAX = 64
START_S_MAX = 180  # about 45 s on two free cores; CI's are shared
STOP_S_MAX = 20
NICE_MAX = 19


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A server that answers ``/health``. ``kv_blocks`` counts the null block; ``log`` is what it printed."""

    base_url: str
    model_dir: Path
    served_name: str
    kv_blocks: int
    log: Path


VllmFactory = Callable[..., VllmServer]

KV_BLOCKS = 256
ORDINARY: tuple[int, tuple[str, ...]] = (KV_BLOCKS, ())
RUNNING: dict[tuple[int, tuple[str, ...]], tuple[subprocess.Popen[bytes], VllmServer]] = {}  # by blocks and flags
STARTED = count()


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(port: int, kv_blocks: int, flags: tuple[str, ...]) -> list[str]:
    """Return the server's command line; later flags win over the ones here."""
    return [
        *(str(HOME / "venv" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(HOME / "model"), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--enforce-eager"),
        *("--max-model-len", str(CONTEXT_TOKENS), "--block-size", str(BLOCK_SIZE)),
        *("--num-gpu-blocks-override", str(kv_blocks), "--max-num-seqs", str(SEQUENCES_MAX)),
        *flags,
    ]


def start(kv_blocks: int, flags: tuple[str, ...], log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server in a process group of its own and return it with its address."""
    port = free_port()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(port, kv_blocks, flags),
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, f"http://127.0.0.1:{port}"


def healthy(base_url: str) -> bool:
    """Whether the server answers ``/health`` with 200."""
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=5) as answer:  # noqa: S310  our own http address
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def wait_until_healthy(process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
    """Wait for the server, and fail with the end of its log when it dies or takes too long."""
    give_up_s = time.monotonic() + START_S_MAX
    while not healthy(base_url):
        ended = process.poll()
        if ended is not None or time.monotonic() > give_up_s:
            what = f"did not answer within {START_S_MAX} s" if ended is None else f"ended with {ended}"
            pytest.fail(f"vLLM {what}; the end of its log:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]))
        time.sleep(0.5)


def let_the_server_go_first(server: VllmServer) -> None:
    """Put the engine's own process last in line for the processor, so that the API server keeps up with it on a busy machine too.

    Each step is shown then, and requests arrive in good time. How the engine decides does not depend on when it is given the processor.
    """
    (process,) = [process for process, running in RUNNING.values() if running == server]
    engines = [pid for pid in descendants_of(process.pid) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert engines, "no process of vLLM's is called EngineCore"
    for pid in engines:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE_MAX)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(STOP_S_MAX)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def stop_servers(keys: list[tuple[int, tuple[str, ...]]]) -> None:
    """End these of the running ones."""
    for key in keys:
        stop(RUNNING.pop(key)[0])


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmFactory]:
    """Return ``vllm_server(kv_blocks=256, *flags)``. 256 blocks hold 8,160 tokens: few enough that a test can fill them."""
    if not (HOME / "venv" / ".installed").exists() or not (HOME / "model" / ".built").exists():
        pytest.fail(f"no vLLM in {HOME}: run make test-vllm")
    folder = tmp_path_factory.mktemp("vllm")

    def serve(kv_blocks: int = KV_BLOCKS, *flags: str) -> VllmServer:
        if (kv_blocks, flags) not in RUNNING:
            log = folder / f"server-{next(STARTED)}.log"
            process, base_url = start(kv_blocks, flags, log)
            RUNNING[kv_blocks, flags] = process, VllmServer(base_url, HOME / "model", "tiny", kv_blocks, log)
            wait_until_healthy(process, base_url, log)
        return RUNNING[kv_blocks, flags][1]

    try:
        yield serve
    finally:
        stop_servers(list(RUNNING))


@pytest.fixture(scope="module", autouse=True)
def ordinary_server_stays_alone() -> Iterator[None]:
    """Stop what a module started for itself at its end: on two cores an idle engine still takes from those that are measured."""
    yield
    stop_servers([key for key in RUNNING if key != ORDINARY])


@pytest.fixture(scope="session")
def replica(vllm_server: VllmFactory) -> VllmServer:
    """Return the ordinary server: 256 blocks of 32 tokens."""
    return vllm_server()
