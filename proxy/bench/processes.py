"""The programs a run consists of: replicas and kvgate, each a process group of its own, none left behind.

Each is started in a session of its own, so that Ctrl-C reaches only the command, which then ends them and all they started;
``Programs`` ends what it started whatever happens. What a program says is read as it comes and its last lines are kept, for the error
that tells why it ended.

Fails: ProgramError, a sentence for the user, when a program does not start or ends before it is told to.
"""

import asyncio
import os
import re
import signal
import socket
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from proxy.ports import Upstream, UpstreamError

START_S_MAX = 60.0  # a busy machine takes long to load Python twice; a healthy start is under two seconds
END_S_MAX = 2.0  # nothing is open any more: whoever drains longer is cut short
LINES_KEPT = 12
COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
COMPLAINTS_KEPT = 5
LINE_CHARACTERS_MAX = 400
POLL_S = 0.05

T = TypeVar("T")


class ProgramError(Exception):
    """A run cannot go on; the message is for the user and says what to do where something can be done."""


class Program:
    """One process and the last lines it said. ``end_s_max``: how long it may take to end when told to."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: asyncio.StreamReader, end_s_max: float) -> None:
        self.name = name
        self._end_s_max = end_s_max
        self._process = process
        self._output = output
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.complaints: list[str] = []  # the first warnings and errors it logged
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name=f"output of {name}")

    async def _read(self) -> None:
        rest = b""
        while data := await self._output.read(65536):
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                self._heard(line)
            self._news.set()
        if rest:
            self._heard(rest)
        await self._process.wait()
        self._over.set()
        self._news.set()

    async def says(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line that matches. Raises ProgramError when the program ends without it."""
        while True:
            self._news.clear()
            for line in self._lines:
                if match := pattern.search(line):
                    return match
            if self._over.is_set():
                raise self.failure("did not start")
            await self._news.wait()

    async def fail_when_over(self) -> None:
        """Wait for the end of the program, then raise ProgramError: nobody asked it to."""
        await self._over.wait()
        raise self.failure("ended before its work was done")

    def _heard(self, line: bytes) -> None:
        text = line.decode(errors="replace")[:LINE_CHARACTERS_MAX]
        self._lines.append(text)
        if len(self.complaints) < COMPLAINTS_KEPT and COMPLAINT.search(text):
            self.complaints.append(text)

    def failure(self, what: str) -> ProgramError:
        """Say that the program ``what``, with its exit code and last lines."""
        code = self._process.returncode
        how = "still running" if code is None else f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        said = "\n".join(f"    {line}" for line in self._lines) or "    (it said nothing)"
        return ProgramError(f"{self.name} {what} ({how}). Its last lines:\n{said}")

    async def end(self) -> None:
        """Terminate, and kill what does not obey soon. Returns when the process is gone."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(self._end_s_max):
                await self._over.wait()
        except TimeoutError:
            pass
        finally:  # also when this wait is cancelled by a second Ctrl-C
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        await self._reading


class Programs:
    """The programs of one run; leaving the block ends them all."""

    def __init__(self) -> None:
        self._running: list[Program] = []

    def complaints(self) -> list[str]:
        """Warnings and errors that the programs logged, with who did."""
        return [f"{program.name}: {line}" for program in self._running for line in program.complaints]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.shield(asyncio.gather(*(program.end() for program in self._running)))

    async def start(self, name: str, words: list[str]) -> Program:
        """Start ``python -m proxy`` with ``words``, unimpressed by the caller's own ``KVGATE_…`` variables."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KVGATE_")}
        environment["KVGATE_LOG_FORMAT"] = "console"  # whoever reads what went wrong is a person
        return await self.start_command(name, [sys.executable, "-m", "proxy", *words], environment)

    async def start_command(
        self, name: str, command: list[str], environment: Mapping[str, str] | None = None, *, end_s_max: float = END_S_MAX
    ) -> Program:
        """Start any command. Raises ProgramError where there is none of that name."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                env={**(os.environ if environment is None else environment), "PYTHONUNBUFFERED": "1"}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ProgramError(f"{name} could not be started: {error}") from error
        if process.stdout is None:
            raise ProgramError(f"{name}: its output could not be opened")
        program = Program(name, process, process.stdout, end_s_max)
        self._running.append(program)
        return program

    async def unless_one_ends(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` while every program runs. Raises ProgramError, and drops the work, as soon as one ends."""
        try:
            async with asyncio.TaskGroup() as group:
                watches = [group.create_task(program.fail_when_over()) for program in self._running]
                result = await work
                for watch in watches:
                    watch.cancel()
        except BaseExceptionGroup as faults:
            first: BaseException = faults
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        return result


async def until_ready(
    program: Program, upstream: Upstream, url: str, *, path: bytes = b"/ready", s_max: float = START_S_MAX
) -> None:
    """Wait until ``path`` under ``url`` answers 200. Raises ProgramError when that takes longer than ``s_max``."""
    try:
        async with asyncio.timeout(s_max):
            while not await _answers_200(upstream, url, path):  # noqa: ASYNC110 - another process has no event for it
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise program.failure(f"was not ready within {s_max:g} s") from None


async def _answers_200(upstream: Upstream, url: str, path: bytes) -> bool:
    try:
        response = await upstream.open(url, b"GET", path, [], b"")
    except UpstreamError:
        return False
    response.close()
    return response.status == 200


def free_ports(count: int) -> list[int]:
    """Different TCP ports of this machine that nobody listens on now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
