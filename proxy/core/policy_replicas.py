"""One replica, as a policy describes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """One vLLM server. What is None is found by probing; a value here is for a replica that cannot tell it.

    ``kv_blocks`` is ``num_gpu_blocks`` as vLLM reports it: all engines of the server, null blocks included. The API key is named, never
    held: ``api_key_env`` is an environment variable, ``api_key_file`` a path.
    """

    url: str
    name: str
    kv_blocks: int | None = None
    block_size: int | None = None
    sequences_max: int | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    kv_events: str | None = None  # where it publishes them; None: its cache is known only from what we send there
