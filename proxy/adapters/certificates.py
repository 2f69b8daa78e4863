"""The system's certificates, read once: it takes 25 ms of the event loop, which each connection would pay that brings its own."""

import ssl
from functools import cache


@cache
def trusted() -> ssl.SSLContext:
    """What a server's certificate is held to."""
    return ssl.create_default_context()
