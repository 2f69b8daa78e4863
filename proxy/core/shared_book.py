"""One replica's book in a proxy that shares the replica with others: what it tells them, and what it takes over from them.

Decides who draws conclusions from the engine's metrics. The proxy that scrapes the replica *holds* its record: its bias and its margin are
those of all. The others *follow*: they take both from the record, and see the engine's gauges and counters in it as if they had scraped
them, so that what they learn of steps, seats and prefill is theirs, while one preemption counter moves one margin once. Whoever becomes
the holder goes on from what it followed. Its phase is each proxy's own to see: what one cannot reach another may, and a holder that cannot
reach it publishes no more, whereupon the others look for themselves.

Steps. Leases are counted by the proxy's own step clock, which never jumps. What is told to others is counted in steps of the record, and
one is turned into the other at the moment of telling: ``shared now - own now`` is the difference. The holder's record goes on from where
the record before it says the replica is, and never back: where its own clock was slower the difference becomes larger for good.

Apart. Without the store everybody is a holder, and the others' rows are replaced by a constant: all but this proxy's share
(``core.sharing``), less the bias, which is added to it again; made anew after each scrape.

Fails: the shared clock runs ahead by what the holder's rate varies, so a row is read a little later than it is: by less than a step for
the fraction of a second until its proxy renews it.
"""

from math import inf

import numpy as np

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.lease import Lease
from proxy.core.lease_sums import PREFILL_DELAY_STEPS
from proxy.core.measurement import LAG_STEPS
from proxy.core.replica import EngineSample
from proxy.core.risk import Risk, peak_of
from proxy.core.roomy import ROOMY_RATIO
from proxy.core.shared import LOAD_FIELDS, Level, Load, Others, Record, load_of, row_of, shifted
from proxy.core.sharing import others_apart, share_blocks
from proxy.core.wait_queue import Waiting

SETTLED_S = 0.5  # what came or went since then may or may not be in the measurement it will be compared with
ENGINE = "shared"


class SharedBook:
    """A book among those of other proxies. ``store_s`` is the store's clock at ``now_s`` of our own."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.record: Record | None = None  # the last one, whoever published it
        self.follows = False
        self.apart = False
        self.free_blocks_told = 0.0  # by the store, with our last grant; 0 where anybody waited
        self._epoch: int | None = None  # of the engine; None: not known
        self._epoch_told = False  # whether others count it so: who has never heard of a record begins with any number
        self._ahead_steps = 0.0  # of the shared clock, while we hold it
        self._row_changes = -1

    def __repr__(self) -> str:
        """State for people and tests."""
        role = "apart" if self.apart else "follows" if self.follows else "holds"
        return f"<SharedBook {self.book.spec.name} {role} epoch={self._epoch}>"

    def renewed(self, book: Book) -> None:
        """The replica was found to be another one: what was told of the old one is void."""
        self.book, self._epoch, self._epoch_told, self._row_changes = book, None, False, -1
        self.free_blocks_told = 0.0
        if self.record is not None and self.follows:
            book.feedback.follow(self.record.z, book.feedback.burst_until_s)

    @property
    def life(self) -> tuple[Book, int | None]:
        """Another one than before where the replica, or its engine, is another."""
        return self.book, self._epoch

    # ---- what others have

    def told(self, others: Others, steps_now: float, now_s: float) -> None:
        """Others have this, where the shared clock is at ``steps_now``."""
        if len(others.row) != LOAD_FIELDS + 4 * len(self.book.grid):
            return  # of a grid that is not ours: the next record settles which it is
        self.apart = False
        own_steps = self.book.steps_now(now_s)  # first: an empty replica's clock stands still until now
        row = others.row if load_of(others.row).leases >= 0.5 else np.zeros_like(others.row)  # nothing is left of rounding either
        self.book.ledger.told(row, own_steps - (steps_now - others.anchor_steps))

    def share_blocks(self, proxies: int, now_s: float) -> float:
        """Blocks that we may fill by ourselves, one of ``proxies`` that do not hear of each other."""
        usable, measured = float(self.book.spec.usable_blocks), self.book.measured_blocks
        return share_blocks(usable, proxies, placed_blocks=self._interval(now_s)[0], measured_blocks=measured)

    def has_share(self, lease_id: str, proxies: int, now_s: float) -> bool:
        """Whether our leases, this one just sent among them, stay within our share."""
        ledger = self.book.ledger
        lease = ledger.leases.get(lease_id)
        if lease is None:
            return False
        if len(ledger.leases) == 1 and not ledger.sequences_of_others and self.book.reconciler.bias_blocks < 1.0:
            return True  # the replica is empty but for it
        return peak_of(ledger.own(), Risk(self.book.feedback.z, 0.0, 0.0)) <= self.share_blocks(proxies, now_s)

    def keep_to_share(self, proxies: int, now_s: float) -> None:
        """The store is out of reach, or the replica was scraped while it is: others have what is not our share."""
        self.apart = True
        self._hold()
        book = self.book
        share = self.share_blocks(proxies, now_s)
        curves = others_apart(book.spec.usable_blocks - book.reconciler.bias_blocks, share, len(book.grid))
        ours, measured = book.ledger.sequences, book.measured_blocks
        # Nobody is seen to have anything: then it is as empty as can be known, and takes anything that fits it alone.
        empty = measured is not None and measured < 1.0 and not book.running
        load = Load(
            leases=float(not empty),
            sequences=max(0.0, float((book.running or 0) - ours)),
            high_blocks=measured or 0.0,  # what is measured beside ours is theirs, and no bias
        )
        own_steps = book.steps_now(now_s)
        book.ledger.told(row_of(load, curves), own_steps)

    def is_roomy(self, now_s: float) -> bool:
        """Whether so much is free of blocks and of seats that nobody waits for what ends here, nor soon will."""
        book, ledger = self.book, self.book.ledger
        seats = book.saturation.seats(now_s)
        if seats is not None and ledger.sequences_total > (1.0 - ROOMY_RATIO) * seats:
            return False
        told = (
            self.free_blocks_told >= ROOMY_RATIO * book.spec.usable_blocks
        )  # at our last grant: of others' later ones we hear later
        return told and book.room_ratio >= ROOMY_RATIO

    # ---- what we have

    @property
    def row_changed(self) -> bool:
        """Whether ``row`` is another than when it was last made."""
        return self._row_changes != self.book.ledger.own_changes

    def row(self, now_s: float, upto: float = inf) -> FloatArray | None:
        """What we have on the replica by reservations ``upto`` a number, counted from now; None for nothing.

        One that the store was asked for and has not answered is not ours yet: told as if it were, it would keep out others, and in time
        everybody, where the store is asked often and refuses.
        """
        book, ledger = self.book, self.book.ledger
        self._row_changes = ledger.own_changes
        asked = [lease for lease in ledger.leases.values() if lease.store_number > upto]
        if len(ledger.leases) == len(asked):
            return None
        low, high = self._interval(now_s)
        own, ends = self._own_without(asked), book.grid.ends
        load = Load(
            leases=float(len(ledger.leases) - len(asked)),
            sequences=float(ledger.sequences - sum(lease.demand.sequences for lease in asked)),
            low_blocks=low,
            high_blocks=max(low, high - sum(book.prompt_blocks(lease.demand) for lease in asked)),
            growth_blocks_per_step=max(0.0, float(own[2, 1] - own[2, 0]))
            / float(ends[1] - ends[0]),  # of all who do not reach their caps
            prefill_tokens=max(
                0.0, book.saturation.own_backlog_tokens(now_s) - sum(lease.demand.prompt_tokens for lease in asked)
            ),
        )
        return shifted(row_of(load, own), book.steps_now(now_s) - ledger.anchor_steps, book.grid)

    def _own_without(self, leases: list[Lease]) -> FloatArray:
        """The curves (4, G) of our leases but these; where one of these may share blocks, no block counts as shared."""
        ledger = self.book.ledger
        own = ledger.sums.copy() if any(lease.demand.hashed for lease in leases) else ledger.own()
        for lease in leases:
            own -= ledger.rows.curves[:, lease.rows].sum(axis=1)
        return own

    def row_of_newcomer(self, entry: Waiting) -> FloatArray:
        """What ``entry`` adds if it is admitted now, counted from now; blocks that we hold there already are not counted again."""
        book, demand = self.book, entry.demand
        newcomer = book.ledger.newcomer(demand, book.output_tokens_max(demand), entry.curves)
        curves = book.ledger.discounted(newcomer, demand)
        blocks = book.prompt_blocks(demand)
        load = Load(1.0, float(demand.sequences), 0.0, blocks, 0.0, float(demand.prompt_tokens))
        return row_of(load, newcomer.sum if curves is newcomer.curves else np.stack(curves.arrays()))

    def row_of_undrawn(self, demand: Demand) -> Level:
        """No less than what ``row_of_newcomer`` says at any step, of a demand that may go undrawn."""
        book = self.book
        highest = book.ledger.newcomers.highest(demand, book.output_tokens_max(demand), PREFILL_DELAY_STEPS)
        load = Load(1.0, float(demand.sequences), 0.0, book.prompt_blocks(demand), 0.0, float(demand.prompt_tokens))
        return Level(load, (load.sequences, *highest), len(book.grid))

    def _interval(self, now_s: float) -> tuple[float, float]:
        """Blocks that our leases hold now: certainly, and at most."""
        return self.book.ledger.held_interval(self.book.steps_now(now_s), LAG_STEPS, since_s=now_s - SETTLED_S)

    # ---- the record

    def record_now(self, holder: str, now_s: float, store_s: float) -> Record:
        """What we publish of the replica as its holder; it is the last record from now on."""
        book, before = self.book, self.record
        own_steps = book.steps_now(now_s)
        steps = own_steps + self._ahead_steps
        if before is not None:
            steps = max(steps, before.steps_at(store_s))
        self._ahead_steps = steps - own_steps
        if self._epoch is None:
            self._epoch = 0 if before is None else before.engine_epoch + 1
        age_s, engine = book.sample_age_s(now_s), book.last_engine
        self.record = Record(
            replica=book.spec.name,
            holder=holder,
            number=1 if before is None else before.number + 1,
            engine_epoch=self._epoch,
            phase=book.phase,
            published_s=store_s,
            steps=steps,
            steps_per_s=book.clock.rate_per_s,
            usable_blocks=book.spec.usable_blocks,
            sequences_max=book.saturation.seats(now_s),
            z=book.feedback.z,
            sigma_blocks=book.reconciler.spread_blocks,
            bias_blocks=book.reconciler.bias_blocks,
            burst_until_s=book.feedback.burst_until_s + store_s - now_s,
            measured_blocks=book.measured_blocks,
            running=book.running,
            waiting=book.waiting,
            preemptions_total=book.feedback.preemptions_total,
            sampled_s=None if age_s is None else store_s - age_s,
            waiting_for_room=None if engine is None else engine.waiting_for_room,
            prompt_tokens_total=None if engine is None else engine.prompt_tokens_total,
            generation_tokens_total=None if engine is None else engine.generation_tokens_total,
            prefix_hits_tokens_total=None if engine is None else engine.prefix_hits_tokens_total,
        )
        return self.record

    def scraped(self, now_s: float, store_s: float, *, new_epoch: bool) -> None:
        """We are about to take in a scrape of our own: the replica is ours to judge."""
        if self.follows and self.record is not None:
            self._ahead_steps = self.record.steps_at(store_s) - self.book.steps_now(now_s)
        self._hold()
        if new_epoch and self._epoch is not None:
            self._epoch += 1

    def _hold(self) -> None:
        self.follows = self.book.feedback.following = False

    def adopt(self, record: Record, now_s: float, store_s: float) -> bool:
        """Take over what its holder published; True when the engine is another than before, so that leases on it are void."""
        book, before = self.book, self.record
        restarted = self._epoch_told and record.engine_epoch != self._epoch
        if restarted:
            book.new_epoch()
        self.record, self.follows = record, True
        self._epoch, self._epoch_told = record.engine_epoch, True
        behind_s = store_s - now_s
        book.feedback.follow(record.z, record.burst_until_s - behind_s)
        book.feedback.preemptions_total = record.preemptions_total
        book.reconciler.follow(record.bias_blocks, record.sigma_blocks)
        if record.sampled_s is not None and (before is None or restarted or before.sampled_s != record.sampled_s):
            book.told(self._engine(record), now_s, record.sampled_s - behind_s)
        if not book.clock.measured:
            book.clock.told(record.steps_per_s)
        book.saturation.told_seats(record.sequences_max, now_s)
        book.ledger.changes += 1  # bias and margin did, if nothing else
        return restarted

    def _engine(self, record: Record) -> EngineSample:
        measured, spec = record.measured_blocks, self.book.spec
        return EngineSample(
            engine=ENGINE,
            kv_usage_ratio=None if measured is None else spec.usage_ratio(measured),
            running=record.running,
            waiting=record.waiting,
            waiting_capacity=record.waiting_for_room,
            preemptions_total=float(record.preemptions_total),
            prompt_tokens_total=record.prompt_tokens_total,
            generation_tokens_total=record.generation_tokens_total,
            prefix_hits_tokens_total=record.prefix_hits_tokens_total,
        )
