"""Decisions. Nothing here awaits, reads a clock, draws a random number, logs, or opens a socket."""
