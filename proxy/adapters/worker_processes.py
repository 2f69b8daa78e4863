"""Several processes that serve the same socket, under a parent that does nothing else.

The parent forks the workers, starts one anew that died (after a pause that doubles while it keeps dying), passes SIGTERM and SIGINT on
(a second one too, which workers take as "at once"), and ends when all have. SIGHUP is passed on too: each reads its policy anew. Workers
are in process groups of their own, so that a Ctrl-C at a terminal reaches each once. They learn of the parent's end by a pipe that then
closes, and drain: none is left behind.

Fails: a worker that hangs is not noticed here; its ``/health`` is the orchestrator's to ask.
"""

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable

from proxy.ports import Clock

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 10.0  # a crash at once must not become a loop of forks, nor one crash an outage
LIVED_S = 30.0  # who lived so long did not die of its start
HANDLED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})

log = logging.getLogger("kvgate.workers")


class Pause:
    """How long a worker that died is waited for."""

    def __init__(self) -> None:
        self._next_s = PAUSE_S_MIN

    def after(self, lived_s: float) -> float:
        """Seconds until it is started again."""
        if lived_s >= LIVED_S:
            self._next_s = PAUSE_S_MIN
        pause_s = self._next_s
        self._next_s = min(2.0 * pause_s, PAUSE_S_MAX)
        return pause_s


class Workers:
    """``count`` processes, each running ``work(index, alive)``; ``alive`` is a descriptor that ends with the parent."""

    def __init__(self, count: int, work: Callable[[int, int], int], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._running: dict[int, tuple[int, float]] = {}  # process to its index and when it was started
        self._due = dict.fromkeys(range(count), 0.0)  # index to when it is to be started
        self._pauses = [Pause() for _ in range(count)]
        self._ending = False
        self._alive, self._held = os.pipe()

    def run(self) -> int:
        """Run them until told to stop and all have ended; the exit code is the worst of those that ended last."""
        code = 0
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        while self._running or not self._ending:
            self._start_due()
            told = signal.sigtimedwait(HANDLED, self._wait_s())
            if told is not None and told.si_signo != signal.SIGCHLD:
                self._pass_on(told.si_signo, ending=told.si_signo != signal.SIGHUP)
            code = max(code, self._collect())
        return code

    def _wait_s(self) -> float:
        soonest_s = min(self._due.values(), default=self._clock.now_s() + PAUSE_S_MAX)
        return max(0.0, soonest_s - self._clock.now_s())

    def _start_due(self) -> None:
        now_s = self._clock.now_s()
        for index in [index for index, due_s in self._due.items() if due_s <= now_s]:
            del self._due[index]
            process = os.fork()
            if not process:
                self._be(index)
            self._running[process] = index, now_s
            log.info("worker.started worker=%d process=%d", index, process)

    def _be(self, index: int) -> None:
        """The child's whole life."""
        code = 1
        try:
            os.close(self._held)
            os.setpgid(0, 0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it knows what to do about it
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            code = self._work(index, self._alive)
        except BaseException:
            traceback.print_exc()
            raise  # never gets beyond the next line: the parent's frames are not this process's to run
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _pass_on(self, number: int, *, ending: bool) -> None:
        if ending:
            self._ending = True
            self._due.clear()
        for process in self._running:
            os.kill(process, number)

    def _collect(self) -> int:
        """Take in the workers that ended. While ending, their worst exit code."""
        worst = 0
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            index, started_s = self._running.pop(process)
            code = os.waitstatus_to_exitcode(status)
            if self._ending:
                worst = max(worst, code if code >= 0 else 1)
                continue
            now_s = self._clock.now_s()
            pause_s = self._pauses[index].after(now_s - started_s)
            self._due[index] = now_s + pause_s
            log.error("worker.died worker=%d process=%d code=%d; started again in %.1f s", index, process, code, pause_s)
        return worst
