"""Give memory that was freed back to the system. glibc keeps it for the next allocation, and reading a tokenizer leaves 70 MB of it."""

import ctypes

TRIM = "malloc_trim"  # glibc's own: musl and other systems have none, and keep less


def give_back() -> None:
    """Takes some milliseconds, in which threads that allocate wait: for moments after much was freed."""
    trim = getattr(ctypes.CDLL(None), TRIM, None)
    if trim is not None:
        trim(0)
