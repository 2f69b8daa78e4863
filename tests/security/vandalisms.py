"""What a vandal does to the keys of two proxies, one stroke at a time: the table that ``test_vandalised_store`` goes by."""

import json
import struct
from itertools import pairwise

import redis

from proxy.core.override import MODE
from tests.security.vandal import FAR, HUGE, INF, JUNK, NAN, POOL, Stroke, Vandal

EXCHANGED = ("proxies", "overrides", "completions", "responses")


def other_types(vandal: Vandal) -> None:
    for key in [
        *vandal.keys("state", "rows", "heads", "headrows"),
        *(POOL + name for name in ("pool", *EXCHANGED)),
        vandal.period,
    ]:
        vandal.client.delete(key)
        vandal.client.set(key, JUNK) if vandal.turn % 2 else vandal.client.rpush(key, JUNK)


def cut(key_parts: tuple[str, ...]) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for key in vandal.keys(*key_parts):
            vandal.every_field(key, lambda _, value: value[: max(0, len(value) - 1 - vandal.turn % 11)])

    return stroke


def junk(key_parts: tuple[str, ...], value: bytes = JUNK) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for key in vandal.keys(*key_parts):
            vandal.every_field(key, lambda _, __: value)

    return stroke


def numbers(part: str, value: float, *kinds: bytes, first: int = 0) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for key in vandal.keys(part):
            vandal.numbers(key, value, kinds=kinds, first=first)

    return stroke


def ghost_rows(value: float, stamp_s: float, *, entry: bool) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        now_s = vandal.client.time()[0]
        for key, state in zip(vandal.keys("rows"), vandal.keys("state"), strict=True):
            points = len(vandal.client.hget(state, "ends") or b"") // 8
            vandal.put(key, "r|ghost", struct.pack("<d", 0.0) + struct.pack("<d", value) * (6 + 4 * points))
            if entry:
                vandal.put(key, "m|ghost", struct.pack("<ddd", 1.0, now_s + stamp_s, 0.0))

    return stroke


def ghost_heads(vandal: Vandal) -> None:
    """One that goes before everybody, for ever, and fits nowhere."""
    for heads, rows, state in zip(vandal.keys("heads"), vandal.keys("headrows"), vandal.keys("state"), strict=True):
        points = len(vandal.client.hget(state, "ends") or b"") // 8
        vandal.put(heads, "5|ghostq", struct.pack("<ddddddddd", -FAR, 0.0, 0.0, FAR, -INF, -INF, 0.0, 1.0, 0.0))
        vandal.put(rows, "5|ghostq", struct.pack("<d", 0.0) + struct.pack("<d", 1e9) * (6 + 4 * points))


def foreign_fields(vandal: Vandal) -> None:
    many = {f"foreign {vandal.turn} {index}": JUNK for index in range(1000)}
    for key in [
        *vandal.keys("state", "rows", "heads", "headrows"),
        *(POOL + name for name in ("pool", "proxies", "overrides")),
        vandal.period,
    ]:
        vandal.client.hset(key, mapping=many)


def pool_numbers(**told: str) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for field, value in told.items():
            vandal.put(POOL + "pool", field, value)

    return stroke


def registrations(value: str) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for field in vandal.fields(POOL + "pool"):
            if field.startswith(b"p|"):
                vandal.client.hset(POOL + "pool", field, value)

    return stroke


def state(**told: str | bytes) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for key in vandal.keys("state"):
            for field, value in told.items():
                vandal.put(key, field, value)

    return stroke


def record(**told: object) -> Stroke:
    """The replicas' records with these words in them, under a number that nobody has heard of."""

    def stroke(vandal: Vandal) -> None:
        for key in vandal.keys("state"):
            known = vandal.fields(key).get(b"record", b"{}")
            try:
                before = json.loads(known)
            except ValueError:
                before = {}
            vandal.put(key, "record", json.dumps(before | {"holder": "ghost"} | told))
            vandal.put(key, "number", str(10**12 + vandal.turn))

    return stroke


def holder(vandal: Vandal) -> None:
    for key in vandal.keys("state"):
        vandal.put(key, "holder", "ghost")
        vandal.put(key, "held_until", "1e300")


def facts_ahead(vandal: Vandal) -> None:
    """Where no clock can come to: who takes over would have to be further."""
    holder(vandal)
    for key in vandal.keys("state"):
        now_s = vandal.client.time()[0]
        vandal.put(key, "facts", struct.pack("<dddddddd", 2.0, 0.0, 0.0, 64.0, INF, 1e12, 30.0, now_s))


def facts(value: float) -> Stroke:
    return state(facts=struct.pack("<d", value) * 8)


def cards(**told: object) -> Stroke:
    """A proxy's card with these words in it, under a name that changes."""

    def stroke(vandal: Vandal) -> None:
        seconds, micros = vandal.client.time()
        card = {"proxy": f"ghost{vandal.turn % 3}", "policy_digest": "d", "version": "99.0", "mode": "enforce", "admin": "http://x",
                "clocks": [], "seen_s": seconds + micros / 1e6, "health": []}  # fmt: skip
        vandal.put(POOL + "proxies", f"ghost{vandal.turn % 3}", json.dumps(card | told))

    return stroke


def overrides(subject: str = MODE, **told: object) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        said = {"subject": subject, "word": "off", "reason": "r", "by": "b", "until_s": vandal.client.time()[0] + 60.0,
                "serial": str(vandal.turn)}  # fmt: skip
        vandal.put(POOL + "overrides", subject, json.dumps(said | told))

    return stroke


def streamed(name: str, *words: object, raw: bytes | None = None) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        word = raw if raw is not None else json.dumps(words[vandal.turn % len(words)])
        vandal.client.xadd(POOL + name, {"c": word})

    return stroke


def last_ids(vandal: Vandal) -> None:
    """After the last id of all nothing can be written any more."""
    for name in ("completions", "responses"):
        far = "18446744073709551615-18446744073709551615" if vandal.turn % 2 else "99999999999999-0"
        try:
            vandal.client.xadd(POOL + name, {"c": '["ghost"]'}, id=far)
        except redis.ResponseError:
            vandal.client.delete(POOL + name)


def other_fields(vandal: Vandal) -> None:
    for name in ("completions", "responses"):
        vandal.client.xadd(POOL + name, {"d": "1"})


def accounts(value: str) -> Stroke:
    def stroke(vandal: Vandal) -> None:
        for field in {*vandal.fields(vandal.period), b"0|default", b"0|\xff\xfe", b"x", b"9" * 5000 + b"|t"}:
            vandal.put(vandal.period, field, value)

    return stroke


def offered(vandal: Vandal) -> None:
    for name in vandal.proxies:
        for word in (JUNK, b"nobody", b"", HUGE):
            vandal.client.publish(f"{POOL}offers:{name}", word)


def renamed(vandal: Vandal) -> None:
    names = [key for key in vandal.client.scan_iter(POOL + "*") if b"tenants" not in key]
    for one, other in pairwise(names):
        vandal.client.rename(one, other) if vandal.client.exists(one) else None


def single_fields_deleted(vandal: Vandal) -> None:
    for key in [*vandal.keys("state", "rows", "heads", "headrows"), POOL + "pool"]:
        fields = sorted(vandal.fields(key))
        if fields:
            vandal.client.hdel(key, fields[vandal.turn % len(fields)])


LEAF = ["mock", "default", False, 3, -1]
DONE = ["ghost", "r0", LEAF, 15.0, True, 100, 15.0, True, False]
BAD_COMPLETIONS = (
    5, [], ["ghost"], DONE[:5], [*DONE[:2], [["deep"]], *DONE[3:]], [*DONE[:2], [], *DONE[3:]], [*DONE[:2], [1, 2, 3, 4, 5], *DONE[3:]],
    [*DONE[:3], NAN, *DONE[4:]], [*DONE[:3], 1e308, *DONE[4:]], [*DONE[:3], "x", *DONE[4:]], [*DONE[:3], -INF, *DONE[4:]],
    [*DONE[:5], 10**400, *DONE[6:]], [*DONE[:6], None, *DONE[7:]], [None, *DONE[1:]], [*DONE[:1], ["r"], *DONE[2:]],
)  # fmt: skip
BAD_RESPONSES = (
    5, [], ["ghost"], ["ghost", "resp_1"], ["ghost", ["resp"], "r0"], ["ghost", "resp_1", {"r": 0}], ["ghost", "resp_1", "r0", NAN],
    ["ghost", "resp_1", "r0", "x"], ["ghost", "x" * 1_000_000, "r0", 1], ["ghost", "resp_1", "r0", -(10**30)],
)  # fmt: skip

VANDALISMS: dict[str, Stroke] = {
    "other types everywhere": other_types,
    "packs cut short: rows": cut(("rows",)),
    "packs cut short: heads": cut(("heads", "headrows")),
    "packs cut short: state": cut(("state",)),
    "junk in rows": junk(("rows",)),
    "junk in heads": junk(("heads", "headrows")),
    "junk in state": junk(("state",)),
    "huge values": junk(("state", "rows"), HUGE),
    "NaN in rows": numbers("rows", NAN, b"r|", b"g", first=1),
    "infinities in rows": numbers("rows", INF, b"r|", b"g", first=1),
    "1e308 in rows": numbers("rows", 1e308, b"r|", b"g", first=1),
    "rows below nothing": numbers("rows", -1e6, b"r|", b"g", first=1),
    "entries of NaN": numbers("rows", NAN, b"m|"),
    "entries of the far future": numbers("rows", 1e15, b"m|", first=1),
    "entries of no epoch": numbers("rows", -INF, b"m|"),
    "a total of NaN": numbers("state", NAN, b"total"),
    "a total of nothing for ever": numbers("state", 1e14, b"total"),
    "a total below nothing": numbers("state", -1e9, b"total", first=4),
    "a ghost's row without an entry": ghost_rows(5e3, 0.0, entry=False),
    "a ghost's row of the far future": ghost_rows(5e3, 1e9, entry=True),
    "a ghost's head of the far future": ghost_heads,
    "heads of NaN": numbers("heads", NAN, b"1", b"2", b"3", b"4", b"5"),
    "thousands of foreign fields": foreign_fields,
    "a generation that is junk": pool_numbers(generation=JUNK.decode("latin-1"), recovering_until="x", expected="x", epoch="x"),
    "a recovery without end": pool_numbers(recovering_until="1e300", expected="1e300"),
    "an epoch beyond all": pool_numbers(epoch="1e300"),
    "an epoch of NaN": pool_numbers(epoch="nan", recovering_until="nan", expected="nan"),
    "foreign epochs": registrations("7"),
    "epochs of junk": registrations("\x00"),
    "a holder who is nobody": holder,
    "steps where no clock comes": facts_ahead,
    "facts of NaN": facts(NAN),
    "facts of 1e308": facts(1e308),
    "facts below nothing": facts(-1e308),
    "a grid of nothing": state(ends=struct.pack("<d", 0.0) * 4),
    "a grid of NaN": state(ends=struct.pack("<d", NAN) * 24),
    "a number that is none": state(number="x"),
    "a number beyond all": state(number="1e300"),
    "a record that is none": record(z="x"),
    "a record of other kinds": record(steps=[], bias_blocks={}, running="many", phase=7),
    "a record of NaN": record(z=NAN, bias_blocks=NAN, steps=NAN, steps_per_s=NAN),
    "a record of 1e308": record(bias_blocks=1e308, sigma_blocks=1e308, running=10**400, steps=1e308),
    "a record below nothing": record(bias_blocks=-1e9, sigma_blocks=-1e9, z=-1e9, steps=-1e9, running=-5, waiting=-5),
    "a record without fields": state(record="{}", number="5"),
    "a record of a replica that is not": record(replica="nobody"),
    "a record of infinite preemptions": record(preemptions_total=1e308, burst_until_s=INF, prompt_tokens_total=INF),
    "cards that are none": cards(clocks=7),
    "cards of another name": cards(proxy="else"),
    "cards of the far future": cards(seen_s=FAR),
    "cards of NaN": cards(seen_s=NAN),
    "clocks beyond all": cards(clocks=[[0, 1e308], [10**30, 5.0]]),
    "clocks of NaN": cards(clocks=[[0, NAN]]),
    "health of other kinds": cards(health=[["r0", "x", [], {}, 5], [["r"], 1.0, 2.0, 1, 1.0], 7]),
    "health beyond all": cards(health=[["r0", 1.0, FAR, 10**30, None], ["r1", NAN, NAN, 1, NAN]]),
    "words that are huge": cards(policy_digest="d" * 1_000_000, version="v\n\u2028\x1b[2J", mode=["x"]),
    "halves of surrogate pairs": cards(admin="\ud800", policy_digest="\udfff"),
    "a mode that nobody knows": overrides(word="panic"),
    "a mode of another kind": overrides(word=["off"]),
    "a mode for ever": overrides(until_s=FAR),
    "a mode until NaN": overrides(until_s=NAN),
    "a drain of other kinds": overrides(subject="drain:r0", word=5, reason=["x"], by={}),
    "a reason without end": overrides(word="observe", reason="r" * 1_000_000),
    "completions that are none": streamed("completions", *BAD_COMPLETIONS),
    "responses that are none": streamed("responses", *BAD_RESPONSES),
    "streams of junk": streamed("completions", raw=JUNK),
    "deep streams": streamed("responses", raw=b"[" * 100_000),
    "streams of other fields": other_fields,
    "streams at their last id": last_ids,
    "accounts that are none": accounts("x"),
    "accounts of NaN": accounts("nan"),
    "accounts beyond all": accounts("1e308"),
    "offers of junk": offered,
    "keys renamed": renamed,
    "single fields deleted": single_fields_deleted,
}
