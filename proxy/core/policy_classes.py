"""The part of the policy that says which requests are treated alike, and how (``core.policy``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Match:
    """Globs, all of which must match; None and an empty tuple match everything. Header names are lower case."""

    model: str | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def everything(self) -> bool:
        """Whether no request can fail to match."""
        return self.model is None and self.path is None and not self.headers

    def covers(self, *, path: str, model: str | None, headers: Mapping[str, str]) -> bool:
        """Whether a request is of this kind. ``headers`` has lower-case names."""
        if self.path is not None and not fnmatchcase(path, self.path):
            return False
        if self.model is not None and (model is None or not fnmatchcase(model, self.model)):
            return False
        return all(name in headers and fnmatchcase(headers[name], glob) for name, glob in self.headers)


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """Requests that are treated alike. Higher ``priority`` goes first; ``weight`` multiplies the tenant's share within a priority."""

    name: str
    match: Match = field(default_factory=Match)
    priority: int = 0
    weight: float = 1.0
    deadline_s: float | None = None  # None: queue.wait_s_max alone bounds the wait
    ttft_s: float | None = None  # None: no target
    tpot_s: float | None = None  # None: no target


DEFAULT_CLASS = TrafficClass("default")
