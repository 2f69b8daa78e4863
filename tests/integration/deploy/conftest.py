"""What is released, built once for all tests of it, and the wheels that an installation without a network needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy import __version__

ROOT = Path(__file__).parents[3]
EXTRAS = "redis,otel,kubernetes"


def succeed(*command: str | Path, s_max: float = 1800, folder: Path | None = None) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=s_max, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tagged(folder: Path, tag: str) -> Path:
    """Return a repository of what is here now, changes included, whose only commit has this tag."""
    listed = succeed("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    names = folder / "names"
    folder.mkdir()
    names.write_text("\n".join(name for name in listed if name and (ROOT / name).exists()))
    source = folder / "source"
    source.mkdir()
    succeed("sh", "-c", f"tar -C '{ROOT}' -c -T '{names}' | tar -C '{source}' -x")
    git = ("git", "-C", source, "-c", "user.name=test", "-c", "user.email=test@localhost")
    succeed(*git, "init", "-q")
    succeed(*git, "add", "-A")
    succeed(*git, "commit", "-q", "-m", "a release")
    succeed(*git, "tag", tag)
    return source


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what ``deploy/package.sh`` made on the version's tag."""
    folder = tmp_path_factory.mktemp("release")
    source = tagged(folder / "tagged", f"v{__version__}")
    succeed(source / "deploy" / "package.sh", folder / "dist")
    return folder / "dist"


@pytest.fixture(scope="session")
def wheels(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of wheels from which kvgate and its extras install without a network."""
    folder = tmp_path_factory.mktemp("wheels")
    (wheel,) = dist.glob("*.whl")
    succeed(sys.executable, "-m", "pip", "download", "-q", "-c", ROOT / "constraints.txt", "-d", folder, f"{wheel}[{EXTRAS}]")
    return folder
