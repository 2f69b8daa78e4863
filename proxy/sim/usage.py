"""KV usage over a simulated world's time, weighted by how long each step took."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Usage:
    """``points`` are (seconds, replica, usage ratio, requests queued), one per step; the means are over step time of all replicas."""

    points: list[tuple[float, str, float, int]] = field(default_factory=list)
    _seconds: float = 0.0
    _sum: float = 0.0
    _seconds_queued: float = 0.0
    _sum_queued: float = 0.0

    def add(self, replica: str, at_s: float, duration_s: float, ratio: float, *, queued: int) -> None:
        """One step of ``duration_s`` seconds during which ``ratio`` of the pool was held and ``queued`` requests waited in front."""
        self.points.append((at_s, replica, ratio, queued))
        self._seconds += duration_s
        self._sum += duration_s * ratio
        if queued:
            self._seconds_queued += duration_s
            self._sum_queued += duration_s * ratio

    @property
    def ratio_mean(self) -> float:
        """Over all steps; 0 when there were none."""
        return self._sum / self._seconds if self._seconds else 0.0

    @property
    def ratio_mean_while_queued(self) -> float:
        """Over the steps while somebody waited in front of the engines; 0 when nobody ever did."""
        return self._sum_queued / self._seconds_queued if self._seconds_queued else 0.0

    @property
    def queued_ratio(self) -> float:
        """Share of step time with a queue."""
        return self._seconds_queued / self._seconds if self._seconds else 0.0
