"""kvgate: the admission proxy that keeps vLLM from preempting.

The life of one request: ``serving.endpoints`` takes bytes and headers, ``wire`` reads the few fields that matter, the token counter
counts the prompt as vLLM will, and together they make a ``core.demand.Demand``. ``serving.dispatcher`` hands it to ``core.gate`` and
waits; the gate reserves on a replica, holds, or sheds. ``serving.relay`` then copies bytes, and leaving the bracket ends the lease.

Floors, imports go downward only (a test holds it):

    cli → app | demo → sim | advise → serving | adapters → ports → wire | config → core
"""

__version__ = "0.1.0"
