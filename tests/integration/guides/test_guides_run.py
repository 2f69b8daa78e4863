"""Blocks that guides mark with ``run`` are typed here, word for word but for addresses and folders, and do what the guide says."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guides import GUIDES, ROOT, marked
from tests.integration.guides.stage import stage

pytestmark = pytest.mark.slow

TROUBLE, README = ROOT / "deploy" / "TROUBLE.md", ROOT / "README.md"
SYSTEMD = ROOT / "deploy" / "systemd" / "README.md"  # tests/integration/deploy/test_systemd_guide.py


def test_every_guide_with_such_blocks_is_played() -> None:
    assert {guide for guide in GUIDES if marked(guide, "run")} == {TROUBLE, README, SYSTEMD}


async def test_look_off_and_back_as_the_page_for_trouble_says(tmp_path: Path) -> None:
    look, off, by_file = marked(TROUBLE, "run")
    metrics = replace(look, text="curl -fsS http://127.0.0.1:8081/metrics")
    async with stage(tmp_path) as played:
        (first,) = marked(README, "run")
        assert '"mock"' in await played.run(first)

        seen = await played.run(look)
        assert 'kvgate_mode{mode="enforce"} 1' in seen
        assert "kvgate_build_info" in seen

        said = await played.run(off)
        assert "ticket 4711" in said
        snapshot = json.loads(gzip.decompress((tmp_path / "ticket.json.gz").read_bytes()))
        assert snapshot["kvgate"]
        assert 'kvgate_mode{mode="enforce"} 1' in await played.run(metrics)  # taken back

        await played.run(by_file)
        policy = (tmp_path / "etc" / "policy.yaml").read_text()
        assert policy.startswith("mode: off\n")
        await played.kvgate.says(re.compile("policy.live"))
        assert 'kvgate_mode{mode="off"} 1' in await played.run(metrics)
