"""Where requests go and who goes past whom."""

from proxy.core.book import Book
from proxy.core.choice import Blocked, Choice
from proxy.core.demand import Demand
from proxy.core.placement import BACKFILL_DEPTH, BACKFILL_S, Placement
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.core.survival import SurvivalModel
from proxy.core.wait_queue import Waiting, WaitQueue
from proxy.core.warmth import Warmth
from tests.support.builders import book, demand, engine_sample, knows_lengths, lease_of, next_choice, scrape

SMALL, HEAD = demand(prompt=100, cap=30), demand(prompt=1000, cap=64)
RUNNING, LONG = demand(prompt=944, cap=64), demand(prompt=500, cap=250)


def books(count: int = 1, **facts: int) -> list[Book]:
    """Replicas just scraped, of known lengths."""
    model = knows_lengths(SurvivalModel(), SMALL, HEAD, RUNNING, LONG)
    made = [book(model, **{"usable": 100, **facts}) for _ in range(count)]
    for index, one in enumerate(made):
        object.__setattr__(one.spec, "name", f"r{index}")
        one.observe(scrape(one.spec.name, 0.0, engine_sample()), 0.0)
    return made


def placement(*waiting: Demand) -> Placement:
    queue = WaitQueue(requests_max=100, tokens_max=10**6, bytes_max=10**6)
    for one in waiting:
        queue.push(Waiting(one, 0.0))
    return Placement(queue, Warmth())


def named(name: str, like: Demand, **more: object) -> Demand:
    return demand(name, prompt=like.prompt_tokens, cap=like.output_tokens_max, **more)  # type: ignore[arg-type]


def busy(name: str = "run") -> list[Book]:
    """One replica with a request of 63 blocks that ends after 64 steps."""
    (one,) = books()
    lease_of(named(name, RUNNING), one).placed = True
    one.ledger.refresh(0.0)
    return [one]


def chosen(choice: Choice | Blocked | None) -> tuple[str, str] | None:
    return (choice.entry.demand.request_id, choice.book.spec.name) if isinstance(choice, Choice) else None


def test_an_empty_queue_chooses_nobody() -> None:
    assert next_choice(placement(), books(), 0.0) is None


def test_most_headroom_wins() -> None:
    pool = books(3)
    for one, prompt in zip(pool, (300, 50, 600), strict=True):
        lease_of(demand("run", prompt=prompt, cap=30), one).placed = True
    assert chosen(next_choice(placement(named("a", SMALL)), pool, 0.0)) == ("a", "r1")


def test_a_full_replica_is_no_choice_however_large() -> None:
    pool = [*busy(), *books(2)[1:]]
    assert chosen(next_choice(placement(named("a", HEAD)), pool, 0.0)) == ("a", "r1")


def test_excluded_foreign_and_closed_replicas_are_passed_over() -> None:
    pool = books(3)
    entry = Waiting(named("a", SMALL), 0.0, excluded={"r0"})
    pool[1].phase = ReplicaPhase.DRAINING
    chooser = placement()
    assert chosen(chooser.choose(entry, pool, 0.0, contended=False)) == ("a", "r2")
    (foreign,) = books()
    object.__setattr__(foreign.spec, "models", ("other",))
    blocked = chooser.choose(entry, [*pool[:2], foreign], 0.0, contended=False)
    assert isinstance(blocked, Blocked)


def test_the_nearest_miss_says_what_binds() -> None:
    blocked = placement().choose(Waiting(named("a", HEAD), 0.0), busy(), 0.0, contended=False)
    assert isinstance(blocked, Blocked)
    assert blocked.binding is Binding.KV
    assert blocked.headroom_ratio < 0.0
    assert set(blocked.curves) == {"r0"}


def test_who_is_gone_before_the_head_can_start_goes_ahead_others_do_not() -> None:
    assert chosen(next_choice(placement(named("h", HEAD), named("s", SMALL)), busy(), 0.0)) == ("s", "r0")
    assert next_choice(placement(named("h", HEAD), named("l", LONG)), busy(), 0.0) is None


def test_a_replica_the_head_waits_not_for_is_free_for_others() -> None:
    pool = [*busy(), *books(2, usable=60)[1:]]  # the head fits only into the first
    lease_of(named("x", SMALL), pool[1])
    found = next_choice(placement(named("h", HEAD), demand("l", prompt=500, cap=250)), pool, 0.0)
    assert chosen(found) == ("l", "r1")


def test_looking_in_vain_is_not_repeated_at_once() -> None:
    pool = busy()
    line = placement(named("h", HEAD), named("l", LONG))
    assert next_choice(line, pool, 0.0) is None
    line.queue.push(Waiting(named("s", SMALL), 0.0))
    assert next_choice(line, pool, BACKFILL_S * 0.9) is None
    assert chosen(next_choice(line, pool, BACKFILL_S * 1.1)) == ("s", "r0")


def test_an_idle_replica_is_not_kept_idle_by_heads_of_another_model() -> None:
    pool = [*busy(), *books(2)[1:]]
    object.__setattr__(pool[1].spec, "models", ("other",))
    heads = [named(f"h{index}", HEAD) for index in range(BACKFILL_DEPTH + 4)]
    assert chosen(next_choice(placement(*heads, named("o", SMALL, model="other")), pool, 0.0)) == ("o", "r1")


def test_a_prompt_goes_only_where_the_context_is_long_enough() -> None:
    """The short one has more room, but its engine would answer 400."""
    pool = [*books(1, usable=200, context=512), *books(2)[1:]]
    assert chosen(next_choice(placement(named("a", HEAD)), pool, 0.0)) == ("a", "r1")


def test_a_head_without_room_is_asked_again_when_something_changed_or_at_the_next_tick() -> None:
    pool, line = busy(), placement()
    line.queue.push(Waiting(named("a", HEAD), 0.0))
    looks: list[str] = []
    choose = line.choose

    def counted(entry: Waiting, *rest: object, **more: object) -> object:
        looks.append(entry.demand.request_id)
        return choose(entry, *rest, **more)  # type: ignore[arg-type]

    line.choose = counted  # type: ignore[method-assign, assignment]
    assert list(line.choices(pool, 0.0, look_behind=False)) == []
    assert list(line.choices(pool, 0.001, look_behind=False)) == []
    assert looks == ["a"]
    assert list(line.choices(pool, 0.002, look_behind=True)) == []
    assert looks == ["a", "a"]
    for lease_id in list(pool[0].ledger.leases):
        pool[0].remove(lease_id, 0.003)
    assert chosen(next(line.choices(pool, 0.003, look_behind=False), None)) == ("a", "r0")
