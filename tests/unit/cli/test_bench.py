"""What ``kvgate bench`` and ``kvgate doctor`` say to somebody who asks wrongly: one line a fault, and exit code 2."""

import pytest

from tests.unit.cli.test_cli import exit_of

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["bench"], ["say what to load", "say how much"]),
        (["bench", URL], ["say how much: --rate R (open loop) or --concurrency N (closed loop)"]),
        (["bench", URL, "--rate", "1", "--concurrency", "2"], ["exclude each other"]),
        (["bench", URL, "--rate", "x"], ['argument --rate: got "x"; allowed a number']),
        (["bench", URL, "--rate", "1", "--cancel", "2"], ['argument --cancel: got "2"; allowed a number from 0 to 1']),
        (["bench", URL, "--rate", "1", "--duration", "60"], ['argument --duration: got "60"', "with its unit"]),
        (["bench", URL, "--rate", "1", "--slo", "p99=1s"], ["allowed ttft=TIME"]),
        (["bench", URL, "--rate", "1", "--warmup", "60s"], ["--warmup leaves nothing"]),
        (["bench", URL, "--rate", "1", "--api-key-env", "KVGATE_NO_SUCH"], ["KVGATE_NO_SUCH"]),
        (["bench", "--rate", "1", "--sweep", "max-num-seqs=1,2"], ["go together"]),
        (["bench", URL, "--rate", "1", "--", "vllm", "serve"], ["go together"]),
        (["bench", URL, "--rate", "1", "--sweep", "max-num-seqs=1,2", "--", "vllm"], ["leave the URL out"]),
        (["bench", "--rate", "1", "--sweep", "max-num-seqs=1"], ["two values or more"]),
        (["bench", "ftp://x", "--rate", "1"], ["http://HOST:PORT"]),
        (["doctor"], ["required: URL"]),
        (["doctor", URL, "--watch", "10"], ["with its unit"]),
        (["check", "x", "--", "vllm", "serve"], ["takes no command line behind --"]),
    ],
)
def test_what_was_asked_wrongly_is_told(argv: list[str], told: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(argv) == 2
    err = capsys.readouterr().err
    assert all(part in err for part in told), err
    assert "Traceback" not in err
