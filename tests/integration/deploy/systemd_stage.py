"""A machine for the guide of ``deploy/systemd``: folders of its own, and a ``systemctl`` that does what the unit says.

It reads the installed unit: variables, the environment file, the credential, ExecStartPre, ExecStart, ExecReload, and TimeoutStopSec. What
systemd does besides (confinement, a user of its own, restarts) it does not; ``systemd-analyze`` looks at that.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = "etc/systemd/system"
READY_S_MAX = 60.0


def told(unit: str, key: str) -> list[str]:
    """Return all values of a key, in their order."""
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


def variables(unit: str, root: Path) -> dict[str, str]:
    """Return what the unit's process finds in its environment, beside what every process has."""
    credentials = root / "credentials"
    credentials.mkdir(exist_ok=True)
    for credential in told(unit, "LoadCredential"):
        name, _, path = credential.partition(":")
        (credentials / name).write_bytes(Path(path).read_bytes())
    found = dict(line.split("=", 1) for line in told(unit, "Environment"))
    for path in told(unit, "EnvironmentFile"):
        file = Path(path.removeprefix("-"))
        if file.exists() or not path.startswith("-"):
            found |= dict(line.split("=", 1) for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {name: value.replace("%d", str(credentials)) for name, value in found.items()}


def command(text: str, environment: dict[str, str]) -> list[str]:
    """Return the words of an Exec line."""
    return [re.sub(r"\$\{?(\w+)\}?", lambda match: environment.get(match[1], ""), word) for word in text.split()]


def start(unit: str, root: Path, pid: Path) -> None:
    """Run ExecStartPre, then ExecStart in the background."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), **variables(unit, root)}
    # The stage's ports are not the guide's.
    environment |= {name: os.environ[name] for name in ("KVGATE_PORT", "KVGATE_ADMIN_PORT", "KVGATE_HOST", "KVGATE_TOKENIZER")}
    for before in told(unit, "ExecStartPre"):
        subprocess.run(command(before, environment), env=environment, check=True, stdout=subprocess.DEVNULL)
    (line,) = told(unit, "ExecStart")
    with (root / "journal").open("ab") as journal:
        process = subprocess.Popen(
            command(line, environment),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=journal,
            start_new_session=True,
        )
    pid.write_text(str(process.pid))


def stop(unit: str, pid: Path) -> None:
    """Send SIGTERM, and wait as long as TimeoutStopSec allows."""
    process, (seconds,) = int(pid.read_text()), told(unit, "TimeoutStopSec")
    os.kill(process, signal.SIGTERM)
    until_s = time.monotonic() + float(seconds) + 30.0  # a busy machine is given more
    while alive(process):
        if time.monotonic() > until_s:
            sys.exit(f"still there {seconds} s after SIGTERM")
        time.sleep(0.05)
    pid.unlink()


def alive(process: int) -> bool:
    """Whether a process runs: gone, or a zombie that nobody has waited for, is neither."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main(words: list[str]) -> None:
    """``systemctl WORDS``."""
    root = Path(os.environ["STAGE_ROOT"])
    unit_file, pid = root / UNITS / "kvgate.service", root / "pid"
    unit = re.sub("/(?=(opt|etc)/kvgate)", f"{root}/", unit_file.read_text())  # its folders are below the stage's
    match words:
        case ["daemon-reload"]:
            pass
        case ["enable", "--now", "kvgate"]:
            start(unit, root, pid)
        case ["reload", "kvgate"]:
            (line,) = told(unit, "ExecReload")
            subprocess.run(command(line, {"MAINPID": pid.read_text()}), check=True)
        case ["disable", "--now", "kvgate"]:
            stop(unit, pid)
        case _:
            sys.exit(f"this systemctl does not know: {' '.join(words)}")


if __name__ == "__main__":
    main(sys.argv[1:])
