"""The image: ``deploy/Dockerfile`` built by buildah, and run. A Debian stands in for its base (``image_base.sh``)."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from proxy import __version__
from proxy.bench.processes import Programs, free_ports, until_ready
from tests.bench.load import new_upstream
from tests.integration.deploy.conftest import ROOT, succeed
from tests.integration.deploy.kubernetes import HOME

pytestmark = pytest.mark.image

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
NAME = "localhost/kvgate-test"
BUILDAH = ("buildah", "--root", str(HOME / "images"), "--runroot", str(HOME / "images-run"))
NOT_FROM_HERE = (
    "hatchling>=1.27",
    "async-timeout",
)  # what builds it, and what redis wants of a Python below 3.11.3, as Debian's is
TEMPORARY = {"/tmp", "/var/tmp", "/run/lock"}  # noqa: S108 - open to everybody in any image; read-only roots mount over the first


def buildah(*words: str | Path) -> str:
    """Run it over the storage of ``image_base.sh``."""
    return succeed(*BUILDAH, *words)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the image's name, built from what is here now."""
    assert (HOME / "images").exists(), f"no base of images in {HOME}: run make test-image"
    wheels = tmp_path_factory.mktemp("wheels")
    (extras,) = re.findall(r"'\.(\[[a-z,-]+\])'", DOCKERFILE.read_text())
    pins = ("-c", ROOT / "constraints.txt")
    succeed(sys.executable, "-m", "pip", "download", "-q", *pins, "-d", wheels, *NOT_FROM_HERE, f"{ROOT}{extras}")
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore")
    form = ("--format", "docker", "--isolation", "chroot", "--pull=false", "--ignorefile", ignored)
    buildah("bud", "-q", *form, "-v", f"{wheels}:/wheels:ro", "-t", NAME, "-f", DOCKERFILE, ROOT)
    return NAME


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[str]:
    name = buildah("from", "-q", "--pull=false", image).strip()
    yield name
    buildah("rm", name)


def inside(container: str, *words: str) -> list[str]:
    """Return the command line that runs something in the container, as its user, on this machine's network."""
    return [*BUILDAH, "run", "--isolation", "chroot", container, "--", *words]


def test_it_says_what_runs_it_and_as_whom(image: str) -> None:
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert config["User"] == "10001:10001"
    assert (config["Entrypoint"], config["Cmd"][0]) == (["kvgate"], "serve")
    assert set(config["ExposedPorts"]) == {"8080/tcp", "8081/tcp"}
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]


def test_it_is_this_version_with_the_packages_that_the_tests_ran_with(container: str) -> None:
    assert __version__ in succeed(*inside(container, "kvgate", "--version"))
    program = "import importlib.metadata as m; print([(d.name, d.version) for d in m.distributions()])"
    there = {
        canonical(name): version for name, version in yaml.safe_load(tuples(succeed(*inside(container, "python", "-c", program))))
    }
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonical(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)}
    assert {"kvgate", "redis", "dnspython", "pyzmq", "uvloop"} <= there.keys()
    assert {name: version for name, version in there.items() if pins.get(name, version) != version} == {}
    assert not {"pip", "setuptools"} & there.keys()


def tuples(text: str) -> str:
    """Return a printed list of tuples as YAML."""
    return text.replace("(", "[").replace(")", "]")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_its_user_is_nobody_and_owns_nothing(container: str) -> None:
    assert succeed(*inside(container, "id", "-u")).strip() == "10001"
    find = (
        "find / -xdev \\( -path /proc -o -path /dev -o -path /sys \\) -prune -o -writable -not -type l -print 2>/dev/null || true"
    )
    assert set(succeed(*inside(container, "sh", "-c", find)).split()) <= TEMPORARY
    assert not succeed(*inside(container, "sh", "-c", "find / -xdev -perm -4000 -path '/opt/*' 2>/dev/null || true"))


async def test_it_serves_and_its_health_check_finds_it_alive(container: str) -> None:
    engine, clients, admin, nobody = free_ports(4)
    probe = re.search(r"CMD (\[.*\])", DOCKERFILE.read_text().replace("\\\n", ""))
    assert probe
    check = json.loads(probe[1])
    upstream = new_upstream()
    async with Programs() as programs:
        await programs.start("mock-vllm", ["mock-vllm", "--port", str(engine)])
        ports = ["--host", "127.0.0.1", "--port", str(clients), "--admin-port", str(admin)]
        words = inside(container, "kvgate", "serve", "--replica", f"http://127.0.0.1:{engine}", *ports)
        kvgate = await programs.start_command("kvgate", words, end_s_max=30.0)
        await until_ready(kvgate, upstream, f"http://127.0.0.1:{clients}", s_max=180.0)
        for port, code in ((admin, 0), (nobody, 1)):
            asked = inside(container, *(word.replace(":8081", f":{port}") for word in check))
            done = await asyncio.to_thread(subprocess.run, asked, capture_output=True, check=False)
            assert done.returncode == code, done.stderr
    await upstream.aclose()
