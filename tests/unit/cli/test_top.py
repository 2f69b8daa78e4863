"""``kvgate top``: what one picture holds, that it fits the terminal, and that names cannot steer it."""

import json
import re
from typing import Any

import pytest

from proxy.cli import main, top
from proxy.cli.admin_call import AdminCallError
from proxy.cli.top_frame import Ink, cut, frame, seconds
from proxy.wire.live_report import (
    DecisionLine,
    Line,
    LiveReport,
    ModeNow,
    Notice,
    PolicyNow,
    QueueNow,
    ReplicaNow,
    Sample,
    StoreNow,
    WaitingNow,
)

STEERING = "acme\x1b[2J\r\nroot"


def replica(name: str, **changes: Any) -> ReplicaNow:
    fields: dict[str, Any] = {
        "phase": "serving", "enforced": True, "capacity_blocks": 1000, "measured_blocks": 250, "estimated_blocks": 300,
        "unplaced_blocks": 200, "forecast_peak_blocks": 750, "leases": 3,
    }  # fmt: skip
    return ReplicaNow(name, **(fields | changes))


def report(**changes: Any) -> LiveReport:
    """A busy proxy's answer."""
    fields: dict[str, Any] = {
        "run": "one", "at_s": 1e9, "up_s": 400.0, "version": "0.1.0", "proxy": "host:1", "headline": "5 requests wait.", "level": "error",
        "mode": ModeNow("observe", "enforce", "by ann: a test", 60.0), "policy": PolicyNow("abc123", "policy.yaml", 1e9, (), ()),
        "drain": "serving", "changes_open": True, "open_requests": 7, "admitted": 100, "held": 9, "shed": 4, "rerouted": 0,
        "queue": QueueNow(5, 500, 12.0, 512, 4000, [Line("batch", 5, 500)], [Line(STEERING, 5, 500)], 3, [
            WaitingNow("batch", "t", "m", 100, 12.0, None, "has a promise")], 4),
        "replicas": [replica("r0"), replica("r1", binding="kv", binds=True), replica("r2", phase="unreachable", fault="ConnectError")],
        "notices": [Notice("error", "x", "Replicas that answer nothing: r2.")],
        "decisions": [
            DecisionLine("a", 1e9, "held", "id-1", "batch", STEERING, "m", "", "Waits 3 s: " + "no room at all " * 20),
            DecisionLine("b", 1e9 + 61, "shed", "id-2", "chat", "globex", "m", "", "Refused (queue_full): too many."),
        ],
        "ended": 1, "sample_every_s": 1.0, "drains": {}, "proxies": [], "store": StoreNow("redis://h", "degraded", 3.0, "timeout", None),
        "samples": [Sample(seq, 1e9 + seq, 5, 7, 10 * seq, 0, seq, {}) for seq in range(1, 31)],
    }  # fmt: skip
    return LiveReport(**(fields | changes))


def text(columns: int = 80, lines: int = 40, **changes: Any) -> list[str]:
    return frame(report(**changes), columns=columns, lines=lines, ink=Ink(colour=False))


def test_a_picture_tells_the_state() -> None:
    whole = "\n".join(text(columns=120))
    for told in (
        "mode observe by hand  policy abc123  store degraded  up 6 min",
        "✕ 5 requests wait.",
        "✕ Replicas that answer nothing: r2.",
        "served 7  waiting 5, the oldest 12 s  let in 10.0/s  refused 1.0/s",
        "classes batch 5 (500 tok)",
        "and 3 more",
        "ConnectError",
        "01:47:41 refused  chat/globex: Refused (queue_full): too many.",
    ):
        assert told in whole
    assert whole.index("01:47:41") < whole.index("01:46:40 held")


def test_a_bar_shows_measured_estimated_and_peak() -> None:
    (line,) = [line for line in text() if line.startswith("r0 ")]
    bar = line.split()[2]
    assert len(bar) == 22
    assert re.fullmatch("█{6}▒{5}·{5}│·{5}", bar)  # 25 %, to 50 %, and 75 % of it
    assert " 25%  75%    1000 -" in line


@pytest.mark.parametrize("columns", [72, 80, 132])
@pytest.mark.parametrize("count", [0, 3, 64])
def test_it_fits_the_terminal(columns: int, count: int) -> None:
    replicas = [replica(f"a-rather-long-name-of-a-replica-{index}.example:8000") for index in range(count)]
    shown = text(columns, 30, replicas=replicas, headline="long " * 60, proxy="p" * 200)
    assert max(map(len, shown)) <= columns
    assert len(shown) <= 32
    if count == 64:
        assert any(line.startswith("and ") and line.endswith("64 of 64 serve") for line in shown)


def test_trouble_comes_first_where_not_all_fit() -> None:
    replicas = [replica(f"r{index}") for index in range(64)]
    replicas[50].phase, replicas[40].binds, replicas[30].forecast_peak_blocks = "unreachable", True, 990
    shown = [line.split()[0] for line in text(lines=30, replicas=replicas) if re.match(r"r\d+ ", line)]
    assert shown[:3] == ["r50", "r40", "r30"]


def test_names_cannot_steer_the_terminal() -> None:
    for line in text(columns=200):
        assert line.isprintable(), line
    coloured = "".join(frame(report(), columns=200, lines=40, ink=Ink(colour=True)))
    assert set(re.findall(r"\x1b\[[0-9;]*[A-Za-z]", coloured)) <= {f"\x1b[{code}m" for code in (0, 1, 2, 31, 32, 33)}
    assert "root" in coloured
    assert "\r" not in coloured


def test_words_for_numbers() -> None:
    assert [seconds(value) for value in (0.04, 9.96, 95, 720, 11_100, 400_000)] == [
        "0.0 s", "10.0 s", "95 s", "12 min", "3 h 05 min", "4 d",
    ]  # fmt: skip
    assert [cut("abcdef", width) for width in (6, 5, 1)] == ["abcdef", "abcd…", "…"]


def answers(monkeypatch: pytest.MonkeyPatch, *told: LiveReport | Exception) -> list[dict[str, str]]:
    """The proxy answers so, one after another; return what it is asked."""
    asked: list[dict[str, str]] = []
    coming = iter(told)

    def call(_method: str, _url: str, path: str, _headers: object, *, query: dict[str, str] | None = None) -> Any:
        assert path == "/admin/live"
        asked.append(query or {})
        one = next(coming)
        if isinstance(one, Exception):
            raise one
        return json.loads(json.dumps(_builtins(one)))

    monkeypatch.setattr(top, "call", call)
    return asked


def _builtins(one: LiveReport) -> Any:
    from msgspec import to_builtins

    return to_builtins(one)


def test_it_asks_only_for_what_is_new_and_anew_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    later = DecisionLine("a", 1e9 + 70, "admitted", "id-1", "batch", "t", "m", "r0", "Admitted.")
    samples = [Sample(31, 1e9 + 31, 0, 0, 310, 0, 31, {})]
    restarted = report(run="two", ended=0, decisions=[], samples=samples)
    asked = answers(monkeypatch, report(), report(decisions=[later], samples=samples, ended=5), restarted, restarted)
    looks = top.Looks("http://x")
    looks.look()
    second = looks.look()
    assert [(one.key, one.kind) for one in second.decisions] == [("b", "shed"), ("a", "admitted")]
    assert [one.seq for one in second.samples] == list(range(12, 32))
    third = looks.look()
    assert (third.run, third.decisions, len(third.samples)) == ("two", [], 1)
    assert asked == [
        {"samples_after": "0", "ended_after": "0"},
        {"samples_after": "30", "ended_after": "1"},
        {"samples_after": "31", "ended_after": "5"},
        {"samples_after": "0", "ended_after": "0"},
    ]


def test_one_picture_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers(monkeypatch, report(), report(), AdminCallError("http://x: refused"))
    assert main(["top", "--once"]) == 0
    assert "5 requests wait." in capsys.readouterr().out
    assert main(["top", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["proxy"] == "host:1"
    assert main(["top"]) == 1
    assert capsys.readouterr().err == "kvgate top: http://x: refused\n"


def test_watching_draws_anew_and_gives_the_screen_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy that does not answer is told of and asked again; Ctrl-C ends it."""
    answers(monkeypatch, report(), AdminCallError("http://x: gone"), report())
    slept: list[float] = []

    def sleep(seconds_: float) -> None:
        slept.append(seconds_)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", sleep)
    monkeypatch.setattr(top.sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["top", "--every", "2s"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(top.OTHER_SCREEN)
    assert shown.endswith(top.THIS_SCREEN)
    assert shown.count("5 requests wait.") == 2
    assert "no answer: http://x: gone" in shown
    assert slept == [2.0, 2.0, 2.0]
