"""What simulated clients send. Generators have names (``WORKLOADS``), recorded traffic has a path; ``load_workload`` takes either."""

from collections.abc import Callable
from pathlib import Path

from proxy.sim.workloads.lengths import CHAT, RAG, REASONING, LengthLaw
from proxy.sim.workloads.loops import ClosedLoop, OpenLoop
from proxy.sim.workloads.reading import read_workload
from proxy.sim.workloads.sampled import Sampled, Shift, Surge
from proxy.sim.workloads.sessions import AGENT, Session, SessionLaw, Sessions
from proxy.sim.workloads.trace import Trace
from proxy.sim.workloads.trace_text import TraceError
from proxy.sim.workloads.workload import LengthStats, Workload

__all__ = [
    "WORKLOADS", "ClosedLoop", "LengthLaw", "LengthStats", "OpenLoop", "Session", "SessionLaw", "Sessions", "Trace", "TraceError",
    "Workload", "load_workload",
]  # fmt: skip

# (seed, block size of the engines, coefficient of variation of gaps) → workload. Fixed before anything was tuned on them; see README.md.
WORKLOADS: dict[str, Callable[[int, int, float], Workload]] = {
    "chat": lambda seed, _, gap_cv: Sampled("chat", CHAT, seed, gap_cv),
    "rag": lambda seed, _, gap_cv: Sampled("rag", RAG, seed, gap_cv),
    "reasoning": lambda seed, _, gap_cv: Sampled("reasoning", REASONING, seed, gap_cv),
    "agent": lambda seed, block_size, gap_cv: Sessions("agent", AGENT, seed, block_size, gap_cv),
    "shift": lambda seed, _, gap_cv: Shift(
        "shift", (Sampled("chat", CHAT, seed), Sampled("reasoning", REASONING, seed)), seed, gap_cv
    ),
    "surge": lambda seed, _, gap_cv: Surge("surge", CHAT, seed, gap_cv),
}


def load_workload(source: str | Path, seed: int, *, block_size: int = 16, gap_cv: float | None = None) -> Workload:
    """Return the generator of that name, or read the recording at that path. ``block_size`` is the engines'; ``gap_cv`` None: Poisson.

    Raises ValueError (TraceError for what is wrong in a file, as ``file:line: what``) for a source that is neither, and for a ``gap_cv``
    with a recording, which has gaps of its own.
    """
    make = WORKLOADS.get(str(source))
    if make is not None:
        return make(seed, block_size, 1.0 if gap_cv is None else gap_cv)
    if not Path(source).is_file():
        raise ValueError(f"{source}: no such workload and no such file; the workloads are {', '.join(WORKLOADS)}")
    if gap_cv is not None:
        raise ValueError(f"gap_cv={gap_cv}: {source} is a recording and has gaps of its own")
    return read_workload(Path(source), seed, block_size)
