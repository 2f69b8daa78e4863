"""For every test: a machine that is busy with something else is no fault of a property."""

from hypothesis import HealthCheck, settings

settings.register_profile("kvgate", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("kvgate")
