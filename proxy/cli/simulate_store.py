"""``kvgate simulate``: how the proxies reach the store they share, and what befalls them."""

import argparse

from proxy.config.faults import quoted
from proxy.config.scalars import RefusedError, Scalar, duration
from proxy.config.settings import SettingsError
from proxy.sim.store import Span, StoreSettings

_DELAY = duration("0us", "10s")
_SKEW = duration("0us", "24h")


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    default = StoreSettings()
    parser.add_argument(
        "--store-delay", type=_delay_s, default=default.delay_s, metavar="TIME",
        help="mean round trip from a proxy to the store, with its unit (default: 1ms)",
    )  # fmt: skip
    parser.add_argument(
        "--store-loss", type=_probability, default=default.loss, metavar="P",
        help="probability that a call of the store or its answer is lost (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--store-partition", type=_span, action="append", default=[], metavar="PROXY:START:END",
        help="cut a proxy (0 is the first) off from the store from second START until END; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--proxy-death", type=_span, action="append", default=[], metavar="PROXY:START:END",
        help="kill a proxy with all it holds at second START; it comes back empty at END; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--clock-skew", type=_skew_s, default=default.skew_s, metavar="TIME",
        help="how far the clocks of one proxy and the next are apart, with its unit (default: 0s)",
    )  # fmt: skip


def store_of(arguments: argparse.Namespace) -> StoreSettings:
    """What the flags ask for. Raises SettingsError where they name a proxy that is not there."""
    named = {span.proxy for span in (*arguments.store_partition, *arguments.proxy_death)}
    if beyond := sorted(proxy for proxy in named if proxy >= arguments.proxies):
        raise SettingsError([f"proxy {beyond[0]}: must be one of --proxies {arguments.proxies}, counted from 0"])
    return StoreSettings(
        delay_s=arguments.store_delay, loss=arguments.store_loss, partitions=tuple(arguments.store_partition),
        deaths=tuple(arguments.proxy_death), skew_s=arguments.clock_skew,
    )  # fmt: skip


def _delay_s(text: str) -> float:
    return _time_s(_DELAY, text)


def _skew_s(text: str) -> float:
    return _time_s(_SKEW, text)


def _time_s(allowed: Scalar, text: str) -> float:
    try:
        return float(allowed.read(text))
    except RefusedError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}{error.hint}: must be {allowed.allowed}") from error


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a probability, from 0 to 1")
    return value


def _span(text: str) -> Span:
    parts = text.split(":")
    if len(parts) != 3 or not parts[0].isdecimal():
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be PROXY:START:END, as 1:20:30")
    try:
        return Span(int(parts[0]), float(parts[1]), float(parts[2]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be PROXY:START:END, a start before an end") from error
