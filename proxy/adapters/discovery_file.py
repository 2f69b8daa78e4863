"""Replicas from a file that something else writes: read anew whenever it changes (``adapters.file_watch``).

What the file does not say of a replica is as the policy has it for all of them. Where the file is a link that leads out of its folder,
whoever can place it there may not be allowed to read what it leads to: then its faults are told by their lines alone.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path

from proxy.adapters.file_watch import Content, FileWatch
from proxy.config.faults import PolicyError
from proxy.config.replica_list import parse_replicas
from proxy.core.policy import ReplicaPolicy
from proxy.ports.replicas import DiscoveryError

LOOK_S = 0.25
FAULTS_SHOWN_MAX = 20


class FileSource:
    """``ports.ReplicaSource`` over a list of replicas."""

    def __init__(self, path: Path, template: ReplicaPolicy) -> None:
        self.shown = f"file {path}"
        self._path = path
        self._template = template

    async def tell(self) -> AsyncIterator[tuple[ReplicaPolicy, ...] | None]:
        """What the file holds, and what it comes to hold. Raises DiscoveryError."""
        watch = await asyncio.to_thread(FileWatch, self._path)
        found: Content | None = watch.told
        while True:
            if found is None:
                yield None
            elif found.fault:
                raise DiscoveryError(f"{self._path}: {found.fault}")
            else:
                try:
                    replicas = await asyncio.to_thread(parse_replicas, found.text, str(self._path))  # seconds, of a hostile one
                except PolicyError as error:
                    raise DiscoveryError(_told(error, shown=not found.elsewhere)) from error
                yield tuple(self._completed(one) for one in replicas)
            await asyncio.sleep(LOOK_S)
            found = await watch.look()

    def _completed(self, one: ReplicaPolicy) -> ReplicaPolicy:
        unsaid = {key.name for key in fields(one) if key.name not in {"url", "name"} and not getattr(one, key.name)}
        if one.api_key_env or one.api_key_file:
            unsaid -= {"api_key_env", "api_key_file"}
        return replace(one, **{name: getattr(self._template, name) for name in unsaid})


def _told(error: PolicyError, *, shown: bool) -> str:
    faults = error.faults[:FAULTS_SHOWN_MAX]
    more = len(error.faults) - len(faults)
    if shown:
        said = "; ".join(str(fault) for fault in faults)
    else:
        lines = ", ".join(str(fault.line) for fault in faults)
        said = f"{faults[0].file}: it is no list of replicas (lines {lines}); it is a link out of its folder, so nothing of it is shown"
    return f"{said}; and {more} more" if more else said
