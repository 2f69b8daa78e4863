"""Every form of ``--redis`` on real servers: TLS, sentinels with a failover, a cluster."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import redis.exceptions

from proxy.adapters.redis_store import RedisStore
from proxy.ports.store import StoreError, StoreFault
from tests.integration.serving.harness import until
from tests.integration.sharing.test_redis_store import offered, store_at, use
from tests.support.redis_server import RedisServer, free_port, redis_server, server_binary

pytestmark = pytest.mark.redis


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key, found = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(found)]
    subprocess.run(command, check=True, capture_output=True)
    return found, key


async def test_tls_with_an_authority_of_ones_own(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    port = free_port()
    config = {"tls-port": str(port), "tls-cert-file": str(cert), "tls-key-file": str(key), "tls-auth-clients": "no"}
    with redis_server(config) as server:
        async with store_at(f"rediss://127.0.0.1:{port}?ca={cert}") as store:
            await use(store)
            assert await offered(store, server) == "r0"
        async with store_at(f"rediss://127.0.0.1:{port}") as store:  # the machine's authorities do not know it
            with pytest.raises(StoreError) as error:
                await store.register("a")
            assert error.value.fault is StoreFault.CONNECTION


async def test_a_cluster() -> None:
    with redis_server({"cluster-enabled": "yes"}) as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        await until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "the cluster")
        async with store_at(f"redis+cluster://127.0.0.1:{server.port}") as store:
            await use(store)
            client.script_flush()
            await use(store)
            assert await offered(store, server) == "r0"


@contextmanager
def sentinel(folder: Path, primary: RedisServer) -> Iterator[int]:
    """One sentinel that watches ``primary`` as ``main``; its port."""
    port = free_port()
    path = folder / "sentinel.conf"
    lines = [f"port {port}", f"dir {folder}", f"sentinel monitor main 127.0.0.1 {primary.port} 1"]
    path.write_text("\n".join([*lines, "sentinel down-after-milliseconds main 300", "sentinel failover-timeout main 1000", ""]))
    process = subprocess.Popen([server_binary(), str(path), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def behind(port: int) -> AsyncIterator[RedisStore]:
    async with store_at(f"redis+sentinel://127.0.0.1:{port}/main") as store:
        yield store


async def until_usable(store: RedisStore) -> None:
    """Wait until the sentinels name a primary that takes everything."""
    async with asyncio.timeout(30):
        while True:
            try:
                await use(store)
            except StoreError:
                await asyncio.sleep(0.05)
            else:
                return


def promoted(server: RedisServer) -> bool:
    """Whether it is the primary now; a sentinel that promotes it closes the connections of its clients, this one's among them."""
    with suppress(redis.exceptions.ConnectionError):
        return bool(server.client().info("replication")["role"] == "master")
    return False


async def test_sentinels_and_a_failover(tmp_path: Path) -> None:
    with redis_server() as primary, redis_server({"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        await until(lambda: replica.client().info("replication")["master_link_status"] == "up", "the replica")
        with sentinel(tmp_path, primary) as port:
            async with behind(port) as store:
                await until_usable(store)
                await until(lambda: primary.client().info("replication")["connected_slaves"] == 1, "the link")
                primary.stop()
                with pytest.raises(StoreError):
                    await use(store)
                await until(lambda: promoted(replica), "the failover", 30.0)
                await until_usable(store)
