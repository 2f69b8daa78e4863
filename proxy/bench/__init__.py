"""Load for people to measure with: what ``kvgate demo`` and ``kvgate bench`` send, and what became of it."""
