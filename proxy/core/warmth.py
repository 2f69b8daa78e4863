"""How much of a request each replica has ready: cached prompt tokens, its session, its LoRA adapter.

    cached   = credit * max(prefix index, session),          never more than the prompt
    uncached = prompt - cached + adapter cost                in tokens of prefill work

*Prefix index* (``core.prefix_index``): the longest prefix whose blocks the replica has. *Session*: where its last turn ran, prompt and
output of that turn are cached too (the engine caches blocks that outputs fill, and the index cannot know their hashes); taken at its
word only where the index agrees, or where prompts are not hashed, and only until as many blocks as the pool has were filled since.
*Adapter*: one that neither runs on the replica nor ran there last has to be loaded, and one more beside others may have to wait for a
slot; both are priced in prefill tokens.

Fails: a session whose client starts a new conversation under the old name, with prompts not hashed, is promised too much; the
credit of its replica pays for that.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from proxy.core.demand import Demand
from proxy.core.events import CacheTold
from proxy.core.ledger import Lease
from proxy.core.prefix_index import HitCredit, PrefixIndex
from proxy.core.replica import ReplicaSample, aggregate
from proxy.core.routing import LOAD_MEMORY_S
from proxy.core.units import blocks_for_tokens

SESSIONS_MAX = 65_536  # about 20 MB; who comes back after so many others finds little cached anyway
OUTPUT_WORK = 1.0  # a token more in a step takes about as long whether it is decoded or prefilled
ADAPTER_LOAD_TOKENS = 2048.0  # some 100 MB from disk or host memory take 0.1 to 0.3 s, as a few thousand tokens of prefill do

SessionName = tuple[str, str, str]  # model, tenant, and what the client calls it: two tenants may choose one name


@dataclass(slots=True)
class Session:
    """The last turn of a session: where, how long its prompt and the whole, and how much the pool had turned over by then."""

    replica: str
    prompt_tokens: int
    tokens: int
    filled_blocks: int
    epoch: int


@dataclass(slots=True)
class Warm:
    """What is known to be warm on one replica. ``filled_blocks`` is how many were ever filled there by us."""

    index: PrefixIndex
    usable_blocks: int
    block_size: int
    caching: bool
    credit: HitCredit = field(default_factory=HitCredit)
    adapters: dict[str, int] = field(default_factory=dict)  # running now
    adapter_last: str = ""
    filled_blocks: int = 0
    load_tokens: float = 0.0  # work sent there, fading
    load_s: float = 0.0  # when it was last counted
    epoch: int = 0  # of all engines and replicas ever found; a session of an earlier one is cold

    def load_tokens_at(self, now_s: float) -> float:
        """Work sent there lately, in tokens of prefill."""
        return self.load_tokens * exp(-max(0.0, now_s - self.load_s) / LOAD_MEMORY_S)


class Warmth:
    """What is warm where, over all replicas."""

    def __init__(self) -> None:
        self._replicas: dict[str, Warm] = {}
        self._sessions: OrderedDict[SessionName, Session] = OrderedDict()
        self._epochs = 0

    def __repr__(self) -> str:
        """Counts for people and tests."""
        indexes = {name: one.index for name, one in self._replicas.items()}
        return f"<Warmth sessions={len(self._sessions)} {indexes!r}>"

    def found(self, replica: str, *, usable_blocks: int, block_size: int, caching: bool = True) -> None:
        """A replica is new, or another one under the name of an old: nothing is warm there."""
        self._epochs += 1
        index = PrefixIndex(usable_blocks, block_size)
        self._replicas[replica] = Warm(index, usable_blocks, block_size, caching, epoch=self._epochs)

    def gone(self, replica: str) -> None:
        """A replica is none of ours any more. Its sessions are cold wherever else they go, and there too if it comes back."""
        self._replicas.pop(replica, None)

    def of(self, replica: str) -> Warm:
        """One replica's. Raises KeyError for one never found."""
        return self._replicas[replica]

    def new_epoch(self, replica: str) -> None:
        """The engine restarted: all that was warm is gone."""
        warm = self._replicas[replica]
        self.found(replica, usable_blocks=warm.usable_blocks, block_size=warm.block_size, caching=warm.caching)
        fresh = self._replicas[replica]
        fresh.credit = warm.credit
        fresh.credit.new_epoch()

    def observed(self, sample: ReplicaSample) -> None:
        """Take in one scrape's count of tokens found cached."""
        engine = aggregate(sample.engines)
        if engine is not None:
            self._replicas[sample.replica].credit.observe(engine.prefix_hits_tokens_total)

    def told(self, event: CacheTold) -> None:
        """Take in what a replica's own events say of its prefix cache."""
        warm = self._replicas.get(event.replica)
        if warm is None:
            return
        if event.cleared:
            warm.index.clear()
        warm.index.stored(event.stored)
        warm.index.removed(event.removed)

    # ---- what a request would find

    def cached_tokens(self, demand: Demand, replicas: Sequence[str]) -> list[float]:
        """Prompt tokens that each replica is expected to find cached, in the order of ``replicas``; 0 where nothing is known."""
        if not demand.hashed and not demand.session:
            return [0.0] * len(replicas)
        session = None if not demand.session else self._sessions.get(_session_name(demand))
        keys: dict[int, list[Sequence[int]]] = {}
        found = []
        for replica in replicas:
            warm = self._replicas.get(replica)
            if warm is None or not (demand.shares_prefix and warm.caching):
                found.append(0.0)
                continue
            index = warm.index
            of_parts = keys.get(index.stride)
            if of_parts is None:
                of_parts = keys[index.stride] = [index.keys_of(part.block_hashes) for part in demand.parts]
            tokens = 0
            for one in of_parts:
                tokens += index.hit_tokens(one)
            if session is not None and session.replica == replica:
                tokens = max(tokens, self._session_tokens(demand, session, warm, tokens))
            found.append(warm.credit.ratio * min(tokens, demand.prompt_tokens - 1) if tokens else 0.0)
        return found

    @staticmethod
    def _session_tokens(demand: Demand, session: Session, warm: Warm, index_tokens: int) -> int:
        turned_over = warm.filled_blocks - session.filled_blocks > warm.usable_blocks
        if len(demand.parts) > 1 or session.epoch != warm.epoch or turned_over:
            return 0
        hashed = bool(demand.parts[0].block_hashes)
        agrees = index_tokens + warm.index.entry_tokens + warm.block_size > session.prompt_tokens
        return session.tokens if agrees or not hashed else 0

    def sent(self, replica: str, now_s: float) -> tuple[float, float]:
        """Work sent there lately, in tokens of prefill, and how many times over its pool was filled by us."""
        warm = self._replicas.get(replica)
        return (0.0, 0.0) if warm is None else (warm.load_tokens_at(now_s), warm.filled_blocks / max(1, warm.usable_blocks))

    def adapter_tokens(self, demand: Demand, replica: str) -> float:
        """What the request's LoRA adapter costs there, in tokens of prefill work."""
        warm = self._replicas.get(replica)
        if not demand.adapter or warm is None or demand.adapter in warm.adapters:
            return 0.0
        load = 0.0 if demand.adapter == warm.adapter_last and not warm.adapters else ADAPTER_LOAD_TOKENS
        return load + ADAPTER_LOAD_TOKENS * len(warm.adapters)

    def first_unshared(self, demand: Demand, replica: str, cached_tokens: float) -> int | None:
        """The hash behind the first ``cached_tokens`` of the prompt: what a conversation begins with, once the system prompt is over."""
        warm = self._replicas.get(replica)
        if warm is None:
            return None
        index = warm.index
        keys = index.keys_of(demand.parts[0].block_hashes)
        at = int(cached_tokens) // index.entry_tokens
        return keys[at] if at < len(keys) else None

    # ---- what we do there

    def placed(self, lease: Lease) -> None:
        """A lease was booked."""
        demand, warm = lease.demand, self._replicas.get(lease.replica)
        if warm is None:
            return
        if lease.cached_tokens:
            warm.credit.expect(round(lease.cached_tokens / warm.credit.ratio))  # what was hoped for before any credit
        work = demand.prompt_tokens - lease.cached_tokens + OUTPUT_WORK * lease.output_tokens_forecast * demand.sequences
        warm.load_tokens = warm.load_tokens_at(lease.sent_s) + work
        warm.load_s = lease.sent_s
        for part in demand.parts:
            if part.block_hashes:
                warm.index.place(warm.index.keys_of(part.block_hashes))
        if demand.adapter:
            warm.adapters[demand.adapter] = warm.adapters.get(demand.adapter, 0) + 1
            warm.adapter_last = demand.adapter
        if demand.session:
            name, tokens = _session_name(demand), demand.prompt_tokens
            self._sessions[name] = Session(lease.replica, tokens, tokens, warm.filled_blocks, warm.epoch)
            self._sessions.move_to_end(name)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)

    def ended(self, lease: Lease) -> None:
        """A lease ended; ``lease.output_tokens`` is as far as it is known to have come."""
        demand, warm = lease.demand, self._replicas.get(lease.replica)
        if warm is None:
            return
        filled = blocks_for_tokens(demand.prompt_tokens + lease.output_tokens, warm.block_size)
        keys = [warm.index.keys_of(part.block_hashes) for part in demand.parts if part.block_hashes]
        hashed = sum(map(len, keys)) * warm.index.stride if keys else 0
        warm.filled_blocks += max(0, filled - int(lease.cached_tokens) // warm.block_size)
        warm.index.fill(max(0, filled - hashed))
        for one in keys or ((),):
            warm.index.end(one)
        if demand.adapter:
            running = warm.adapters.pop(demand.adapter, 0)
            if running > 1:
                warm.adapters[demand.adapter] = running - 1
        session = self._sessions.get(_session_name(demand)) if demand.session else None
        if session is not None and session.replica == lease.replica and session.prompt_tokens == demand.prompt_tokens:
            session.tokens = demand.prompt_tokens + lease.output_tokens
            session.filled_blocks = warm.filled_blocks


def _session_name(demand: Demand) -> SessionName:
    return demand.length_class.model, demand.tenant, demand.session
