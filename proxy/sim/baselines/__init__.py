"""What kvgate is compared with: published and common admission rules behind one and the same queue. ``make_baseline`` takes a name."""

from proxy.sim.baselines.registry import BASELINES, PASS_THROUGH, make_baseline

__all__ = ["BASELINES", "PASS_THROUGH", "make_baseline"]
