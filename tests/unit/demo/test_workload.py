"""Both runs of the demo get the same load, and every request of it fits the smallest pool it may be asked for."""

import json
from collections.abc import Iterator
from io import StringIO

import pytest

from proxy.advise.result_file import RequestSample
from proxy.bench.load import Tally
from proxy.bench.screen import Screen
from proxy.demo.counters import ReplicaCounts, counts_from
from proxy.demo.progress import progress_line
from proxy.demo.workload import KV_BLOCKS_MIN, DemoSettings, mock_words, request_bodies
from proxy.sim.mock_text import MockTokenizer


def test_equal_seeds_give_equal_bytes() -> None:
    assert request_bodies(DemoSettings(seed=3, requests=5)) == request_bodies(DemoSettings(seed=3, requests=5))
    assert request_bodies(DemoSettings(seed=3, requests=5)) != request_bodies(DemoSettings(seed=4, requests=5))


@pytest.mark.parametrize("kv_blocks", [KV_BLOCKS_MIN, 100, 1024])
def test_every_request_fits_the_context(kv_blocks: int) -> None:
    settings = DemoSettings(requests=50, kv_blocks=kv_blocks)
    tokenizer = MockTokenizer()
    for body in map(json.loads, request_bodies(settings)):
        prompt = tokenizer.encode(tokenizer.render(body["messages"], add_generation_prompt=True))
        assert len(prompt) + body["max_tokens"] <= settings.context_tokens_max
        assert body["stream_options"] == {"include_usage": True}


def test_the_mocks_serve_what_the_settings_say() -> None:
    words = mock_words(DemoSettings(seed=9, kv_blocks=64))
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert flags["--num-gpu-blocks"] == "64"
    assert flags["--max-model-len"] == str(63 * 16)
    assert flags["--seed"] == "9"


def test_counts_are_summed_over_replicas_and_engines() -> None:
    text = (
        b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_preemptions_total{engine="0"} 2.0\n'
        b'vllm:num_preemptions_total{engine="1"} 1.0\nmock:recomputed_tokens_total{engine="0"} 40.0\n'
    )
    assert counts_from([text, text]) == ReplicaCounts(6, 6, 80)
    assert counts_from([]) == ReplicaCounts()


def test_progress_tells_how_far_it_is() -> None:
    tally = Tally(40, started_s=2.0)
    tally.results = [RequestSample(0.0, 0.0, 1.0, "completed")] * 7
    line = progress_line("with kvgate", tally, ReplicaCounts(5, 3, 0), 10.4)
    assert line.split() == "with kvgate 7/40 completed, 5 running, 3 preemptions, 8 s".split()  # noqa: SIM905
    tally.results.append(RequestSample(0.0, 0.0, 1.0, "shed", error="429 queue_full"))
    assert "7/40 completed, 1 shed," in progress_line("with kvgate", tally, ReplicaCounts(), 10.0)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with Terminal() as out:
        yield out


def test_a_terminal_is_updated_in_place(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.update("long line")
    screen.update("short")
    screen.say("stays")
    assert terminal.getvalue() == "long line\r         \rshort\r     \rstays\n"


def test_a_line_never_wraps_on_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "6")
    Screen(terminal).update("0123456789")
    assert terminal.getvalue() == "01234"


def test_a_file_gets_whole_lines() -> None:
    out = StringIO()
    screen = Screen(out)
    screen.update("one")
    screen.update("two")
    screen.say("stays")
    assert out.getvalue() == "one\ntwo\nstays\n"
