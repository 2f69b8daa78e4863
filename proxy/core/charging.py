"""What a tenant is charged before its requests end: by the lengths that its answers had, not by the forecast that guards the cache.

Formula. Of the tenant's answers that ended, each forgotten by the later ones (``KEEP``), ``n`` is how many they count for and ``T`` the sum
of their tokens; ``R`` is the same mean over all tenants, before any has ended the forecast's own:

    expected tokens = (T + PRIOR * R) / (n + PRIOR)

Why: a forecast guards against lengths that were hardly ever seen, so where requests have no cap its mean may be a hundred times what they
take, by another factor for each tenant. As far as fitting goes that is safe; as a charge it would let those go first of whom little is in
flight, and pay back later what was never owed. ``Scale`` says how many block-steps were charged for one that was forecast: what is waiting
is counted as forecast, since the rates that its wait is told by are measured in the same.

Fails: who has just become known is charged by the mean of all; a change of lengths shows after some dozen ends.
"""

from dataclasses import dataclass

KEEP = 1.0 - 1.0 / 50.0  # as many ends as tell a mean of lengths within a seventh
PRIOR = 3.0  # ends: fewer tell more of luck than what all tenants' do
SCALE_MIN = 1e-6


@dataclass(slots=True)
class MeanLength:
    """Output tokens of one sequence, of the requests that ended."""

    count: float = 0.0
    tokens: float = 0.0

    def ended(self, output_tokens: float) -> None:
        """One ended with so many tokens out."""
        self.count = KEEP * self.count + 1.0
        self.tokens = KEEP * self.tokens + output_tokens

    def expected(self, prior: float) -> float:
        """The mean; ``prior`` is what to think before enough have ended."""
        return (self.tokens + PRIOR * prior) / (self.count + PRIOR)


@dataclass(slots=True)
class Scale:
    """Charged over forecast block-steps of the requests admitted last."""

    charged: float = 0.0
    forecast: float = 0.0

    def admitted(self, charged: float, forecast: float) -> None:
        """One was charged ``charged`` where ``forecast`` were expected."""
        self.charged = KEEP * self.charged + charged
        self.forecast = KEEP * self.forecast + forecast

    def returned(self, charged: float, forecast: float) -> None:
        """One that was charged so was not admitted after all."""
        self.charged, self.forecast = max(0.0, self.charged - charged), max(0.0, self.forecast - forecast)

    @property
    def ratio(self) -> float:
        """1 until one was admitted."""
        return max(self.charged / self.forecast, SCALE_MIN) if self.forecast > 0.0 else 1.0
