"""How alike tenants with unequal numbers of clients are served, in virtual time: ``python -m tests.bench.shared_fair``.

One line for each seed and number of proxies: Jain's index of token-time, every tenant's part of an equal share by its number of clients,
output tokens a second, and how many of its requests were refused. The load is that of ``tests.bench.shared_overload``
(``tests.support.shared_tenants``), without a processor that is too slow for it.
"""

import argparse
import sys
from collections.abc import Sequence

from proxy.sim.store import StoreSettings
from tests.support.shared_tenants import Crowd, served


def line(crowd: Crowd) -> str:
    """Play one world and tell of it."""
    found = served(crowd)
    shares = " ".join(f"{count}:{share:.2f}" for count, share in zip(crowd.counts, found.shares.values(), strict=True))
    refused = found.refused.total() / max(1, found.requests.total())
    return f"{crowd.seed:>5} {crowd.proxies:>7} {found.jain:>6.3f} {found.goodput:>9.0f} {refused:>8.0%} {found.preemptions:>10}  {shares}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 11, 22, 33])
    parser.add_argument("--proxies", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--seconds", type=float, default=80.0, help="judged of each world (default: %(default)s)")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="there and back to the store (default: %(default)s)")
    known = parser.parse_args(argv)
    head = f"{'seed':>5} {'proxies':>7} {'Jain':>6} {'tokens/s':>9} {'refused':>8} {'preempted':>10}  shares, by clients\n"
    sys.stdout.write(head)
    for seed in known.seeds:
        for proxies in known.proxies:
            store = StoreSettings(delay_s=known.delay_ms / 1000.0)
            sys.stdout.write(line(Crowd(proxies=proxies, seed=seed, seconds=known.seconds, store=store)) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
