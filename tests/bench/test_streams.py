"""Sixty open streams are all served to their end, and nothing of them stays."""

import asyncio
from pathlib import Path

import pytest

from tests.bench.streams import lines, run


@pytest.mark.slow
def test_open_streams_come_to_their_end_and_leave_nothing_behind(tmp_path: Path) -> None:
    result = asyncio.run(run(tmp_path, [30, 60]))
    assert result.faults == [], "\n".join(lines(result))
    assert result.ended == 60
