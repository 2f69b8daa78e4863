"""GPU utilisation from NVIDIA's DCGM exporter: ``DCGM_FI_DEV_GPU_UTIL``, per cent of the time that some kernel ran."""

from proxy.wire.exposition import Scanner

_SCANNER = Scanner(("DCGM_FI_DEV_GPU_UTIL",))


def read_gpu_util(text: bytes) -> float | None:
    """Mean over the exporter's cards, 0 to 1; None where it shows none."""
    values = [series.value / 100.0 for series in _SCANNER.scan(text).series if 0.0 <= series.value <= 100.0]
    return sum(values) / len(values) if values else None
