"""For every test: a machine that is busy with something else is no fault of a property, and programs log as they do to people."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("kvgate", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("kvgate")

# Their standard error is no terminal here, which would make it JSON. Tests read its lines; those of the JSON ask for it.
os.environ.setdefault("KVGATE_LOG_FORMAT", "console")
