"""Formats: bytes and dictionaries to values and back. No I/O."""
