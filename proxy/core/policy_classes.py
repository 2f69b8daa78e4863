"""The part of the policy that says which requests are treated alike, and how (``core.policy``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase


class Saturated(StrEnum):
    """What may be done with a request for which no replica has room now."""

    QUEUE = "queue"  # hold it until one has
    REROUTE = "reroute"  # to one of the class's fallbacks
    DEGRADE = "degrade"  # let it in with fewer output tokens than it asked for
    SHED = "shed"  # tell it when to come back: what is left when nothing else will do


@dataclass(frozen=True, slots=True)
class Facts:
    """What a request can be matched by. Header names are lower case. What is None is not known, or is not there."""

    path: str
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tenant: str | None = None
    key_sha256: str | None = None  # of the API key that came with it, in hexadecimal
    stream: bool = False
    adapter: str | None = None  # the LoRA adapter it asks for
    prompt_tokens: int | None = None  # over all its prompts; None until they were counted


@dataclass(frozen=True, slots=True)
class TokenRange:
    """From ``least`` to ``most`` prompt tokens, both included."""

    least: int = 0
    most: int | None = None

    def __contains__(self, tokens: int) -> bool:
        return self.least <= tokens and (self.most is None or tokens <= self.most)


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions, all of which must hold; None and an empty tuple hold for everything. Texts are globs but for the key's digest."""

    model: str | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    tenant: str | None = None
    key_sha256: tuple[str, ...] = ()  # any of them
    stream: bool | None = None
    lora: str | None = None
    prompt_tokens: TokenRange | None = None

    @property
    def everything(self) -> bool:
        """Whether no request can fail to match."""
        return self == _EVERYTHING

    def missed(self, facts: Facts) -> str | None:
        """The first condition that does not hold, by its policy key below ``match``; None when all do."""
        globs = (("path", self.path, facts.path), ("model", self.model, facts.model), ("tenant", self.tenant, facts.tenant),
                 ("lora", self.lora, facts.adapter))  # fmt: skip
        for key, glob, value in globs:
            if glob is not None and (value is None or not fnmatchcase(value, glob)):
                return key
        for name, glob in self.headers:
            if name not in facts.headers or not fnmatchcase(facts.headers[name], glob):
                return f"headers.{name}"
        if self.key_sha256 and facts.key_sha256 not in self.key_sha256:
            return "key_sha256"
        if self.stream is not None and self.stream is not facts.stream:
            return "stream"
        if self.prompt_tokens is not None and (facts.prompt_tokens is None or facts.prompt_tokens not in self.prompt_tokens):
            return "prompt_tokens"
        return None

    def covers(self, facts: Facts) -> bool:
        """Whether a request is of this kind. A condition on what is not known does not hold."""
        return self.missed(facts) is None


_EVERYTHING = Match()


@dataclass(frozen=True, slots=True)
class ClassQueue:
    """Bounds of what waits of one class, beside those of the whole queue (``core.policy.Queue``). None: those alone."""

    requests_max: int | None = None
    tokens_max: int | None = None
    wait_s_max: float | None = None  # in the place of the whole queue's


@dataclass(frozen=True, slots=True)
class Degrade:
    """How far a request's output may be cut: its cap is never set below ``output_tokens_min``."""

    # A long paragraph: what is shorter is hardly the answer that was asked for.
    output_tokens_min: int = 256


@dataclass(frozen=True, slots=True)
class Fallback:
    """Where else a request may go: to another model here, or with a ``url`` to an OpenAI-compatible API outside.

    ``model`` None: under the name that the client used. The key is named, never held.
    """

    model: str | None = None
    url: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None

    @property
    def label(self) -> str:
        """How the header ``x-kvgate-fallback`` names it."""
        return " ".join(part for part in (self.url, self.model) if part)


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
    queue: ClassQueue = field(default_factory=ClassQueue)
    # In the order in which they are tried. Waiting first: most waits are short, and an answer from elsewhere is another answer.
    when_saturated: tuple[Saturated, ...] = (Saturated.QUEUE, Saturated.REROUTE, Saturated.SHED)
    degrade: Degrade | None = None
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def reroutes_first(self) -> bool:
        """Whether a request is sent elsewhere before it waits here."""
        return bool(self.fallbacks) and Saturated.QUEUE in self.when_saturated[self.when_saturated.index(Saturated.REROUTE) :]

    @property
    def degrades_first(self) -> bool:
        """Whether a request asks for less before it waits."""
        if Saturated.DEGRADE not in self.when_saturated:
            return False
        return Saturated.QUEUE not in self.when_saturated[: self.when_saturated.index(Saturated.DEGRADE)]

    def wait_s_max(self, pool_s_max: float) -> float:
        """Seconds that a request may wait; ``pool_s_max`` where the class says nothing."""
        return pool_s_max if self.queue.wait_s_max is None else self.queue.wait_s_max


DEFAULT_CLASS = TrafficClass("default")
