"""The policy that rules this process, and how another takes its place while requests run.

A file that is good rules at once and as a whole: whoever keeps a part of the policy is told (``follow``), one after another with nothing
awaited in between. A bad one changes nothing, and is told in the log, in ``/ready``, at ``/admin/policy`` and in metrics, with every fault
and its line, until it is good again. Some keys wait for a restart (``config.live``); the process goes on by their old values and says so.

Fails: the file alone is judged, not what it names: a tokenizer or a replica that is not there shows where it is used.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from proxy.config.faults import Fault
from proxy.config.live import KeyChange, changes, taken_up
from proxy.config.policy_file import Review, review
from proxy.config.settings import SettingsError
from proxy.core.policy import Policy
from proxy.core.policy_version import policy_version
from proxy.ports import Clock
from proxy.ports.policy import PolicyState
from proxy.serving.guard import Guard, Part
from proxy.serving.replica_set import ReplicaParts, ReplicaSet, ReplicaUnusableError

GOOD, BAD = "good", "bad"
FAULTS_TOLD_MAX = 100  # of a file that is another one altogether; ``kvgate check`` tells all

log = logging.getLogger("kvgate.policy")


@dataclass(frozen=True, slots=True)
class Judged:
    """What a text would mean. ``faults`` are lines for people, and with any of them the rest is empty."""

    faults: tuple[str, ...] = ()
    policy: Policy | None = None
    parts: dict[str, ReplicaParts] = field(default_factory=dict)
    changes: tuple[KeyChange, ...] = ()
    at_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # of what has no effect; the policy can be used


class LivePolicy:
    """``read`` turns what a file says into what this process runs with, under its flags; it raises SettingsError."""

    def __init__(
        self, policy: Policy, file: str, read: Callable[[Policy], Policy], replicas: ReplicaSet, clock: Clock, guard: Guard
    ) -> None:  # fmt: skip
        self.policy = policy
        self.file = file
        self.version = policy_version(policy)
        self.faults: tuple[str, ...] = ()  # of the file as it is now
        self.at_restart: tuple[str, ...] = ()
        self.reloads: Counter[str] = Counter({GOOD: 0, BAD: 0})
        self.good_s = clock.wall_s()  # when a good file was last read
        self.modified_s: float | None = None  # of the file that rules
        self._read = read
        self._replicas = replicas
        self._clock = clock
        self._guard = guard
        self._followers: list[Callable[[Policy], None]] = []

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<LivePolicy {self.version} good={self.reloads[GOOD]} bad={self.reloads[BAD]}>"

    def follow(self, follower: Callable[[Policy], None]) -> None:
        """``follower`` is told the policy that rules, now and whenever it is another. It may not wait."""
        self._followers.append(follower)
        follower(self.policy)

    def reviewed(self, text: bytes) -> Review:
        """The text read, which takes seconds where it is long: for any thread."""
        try:
            return review(text.decode("utf-8-sig"), self.file)
        except UnicodeDecodeError as error:
            got = f"a byte that is no UTF-8 at offset {error.start}"
            return Review(
                None, (Fault(self.file, 0, 0, "file", got, "UTF-8 text", "YAML is UTF-8 text: is it the right file?"),), ()
            )

    def judge(self, text: bytes, reviewed: Review | None = None) -> Judged:
        """What the text would mean if it was the file's; nothing changes. ``reviewed``: it has been read already."""
        found = reviewed or self.reviewed(text)
        try:
            if found.policy is None:
                return Judged(self._first(found.faults))
            wanted = self._read(found.policy)
            effective, at_restart = taken_up(self.policy, wanted)
            parts = self._replicas.parts_of(effective.replicas)
        except SettingsError as error:
            return Judged(error.faults)
        except ReplicaUnusableError as error:
            return Judged((str(error),))
        warnings = tuple(str(warning) for warning in found.warnings)
        return Judged((), effective, parts, tuple(changes(self.policy, wanted)), at_restart, warnings)

    def _first(self, faults: tuple[Fault, ...]) -> tuple[str, ...]:
        more = len(faults) - FAULTS_TOLD_MAX
        told = tuple(str(fault) for fault in faults[:FAULTS_TOLD_MAX])
        return (*told, f"{self.file}: and {more} more") if more > 0 else told

    def take(self, text: bytes, modified_s: float, reviewed: Review | None = None) -> bool:
        """The file holds this now. False when it is bad, so that nothing has changed."""
        judged = self.judge(text, reviewed)
        if judged.policy is None:
            self.refuse(judged.faults)
            return False
        self.reloads[GOOD] += 1
        self.faults, self.at_restart = (), judged.at_restart
        self.good_s, self.modified_s = self._clock.wall_s(), modified_s
        before = self.version
        self.rule(judged.policy, judged.parts)
        for warning in judged.warnings:
            log.warning("policy.warning %s", warning)
        for change in judged.changes:
            log.info("policy.changed key=%s from=%s to=%s", change.key, change.old, change.new)
        log.warning("policy.live version=%s before=%s file=%s", self.version, before, self.file)
        if self.at_restart:
            log.warning("policy.at_restart keys=%s: these take effect when the process starts again", ",".join(self.at_restart))
        return True

    def refresh(self) -> None:
        """Read the keys anew that the policy names."""
        try:
            self._replicas.refresh()
        except ReplicaUnusableError as error:
            self.refuse((str(error),))

    def rule(self, policy: Policy, parts: dict[str, ReplicaParts]) -> None:
        """Let ``policy`` rule from now on, with ``parts`` for replicas that are new or changed in it."""

        def set_replicas() -> None:
            self._replicas.apply(policy.replicas, parts)

        self.policy, self.version = policy, policy_version(policy)
        self._guard.run_now(Part.GATE, set_replicas)
        for follower in self._followers:
            self._guard.run_now(Part.GATE, partial(follower, policy))

    def refuse(self, faults: tuple[str, ...]) -> None:
        """The file is bad: what rules goes on ruling."""
        self.reloads[BAD] += 1
        self.faults = faults
        for fault in faults:
            log.error("policy.bad %s", fault)
        log.error("policy.kept version=%s: the file has faults, and what it said before still rules", self.version)

    def state(self) -> PolicyState:
        """For metrics and people."""
        return PolicyState(
            self.version, self.file, self.modified_s, self.good_s, dict(self.reloads), self.faults, self.at_restart
        )
