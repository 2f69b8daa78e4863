"""What the judge of shared grants found, and its figures."""

from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class Finding:
    """One grant that should not have been."""

    at_s: float
    replica: str
    proxy: str
    what: str
    blocks: float = 0.0


@dataclass(slots=True)
class Verdict:
    """What the judge saw. ``excess_blocks`` of each grant to a replica that held something: highest Q less usable."""

    grants: int = 0
    grants_on_empty: int = 0
    rewrites: int = 0
    excess_blocks: list[float] = field(default_factory=list)
    excess_exact_blocks_max: float = -inf
    over: list[Finding] = field(default_factory=list)
    passed_by: list[Finding] = field(default_factory=list)
    delayed: list[Finding] = field(default_factory=list)
    behind_heads: int = 0  # grants while a better head waited elsewhere
    after_offers: int = 0  # of which the head had been offered room for longer than an offer lasts
    past_far_heads: int = 0  # better heads that fitted, behind those that a reservation looks at
    unread: int = 0  # calls the judge could not follow

    def as_json(self) -> dict[str, object]:
        """The figures."""
        excess = sorted(self.excess_blocks)
        return {
            "grants": self.grants,
            "grants_on_empty": self.grants_on_empty,
            "rewrites": self.rewrites,
            "grants_over": len(self.over),
            "excess_blocks_max": excess[-1] if excess else None,
            "excess_exact_blocks_max": self.excess_exact_blocks_max if excess else None,
            "excess_blocks_p50": excess[len(excess) // 2] if excess else None,
            "grants_behind_a_head": self.behind_heads,
            "grants_after_an_offer": self.after_offers,
            "grants_past_a_head": len(self.passed_by),
            "grants_past_a_far_head": self.past_far_heads,
            "grants_delaying_a_head": len(self.delayed),
            "unread": self.unread,
            "worst": [vars_of(one) for one in sorted(self.over, key=lambda one: -one.blocks)[:5]],
            "passed": [vars_of(one) for one in self.passed_by[:5]],
            "delayed": [vars_of(one) for one in sorted(self.delayed, key=lambda one: -one.blocks)[:5]],
        }


def vars_of(finding: Finding) -> dict[str, object]:
    """A finding as plain values."""
    return {
        "at_s": finding.at_s,
        "replica": finding.replica,
        "proxy": finding.proxy,
        "what": finding.what,
        "blocks": finding.blocks,
    }
