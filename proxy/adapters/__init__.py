"""One file per outside thing; each implements a protocol of :mod:`proxy.ports`."""
