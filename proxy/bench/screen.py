"""Where people watch a command work: one line updated in place on a terminal, else lines that stay."""

import shutil
from dataclasses import dataclass
from typing import TextIO


@dataclass(slots=True)
class Screen:
    """Where people look."""

    out: TextIO
    plain_every: int = 1  # without a terminal, one line per this many updates
    _updates: int = 0
    _shown: int = 0  # characters of the line that is to be overwritten

    def say(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self.out.write(f"{text}\n")
        self.out.flush()

    def update(self, text: str) -> None:
        """On a terminal, replace the line before; else now and then a line that stays."""
        if not self.out.isatty():
            if self._updates % self.plain_every == 0:
                self.say(text)
            self._updates += 1
            return
        self.clear()
        text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be overwritten
        self.out.write(text)
        self.out.flush()
        self._shown = len(text)

    def clear(self) -> None:
        """Take away the line that is to be overwritten."""
        if self._shown:
            self.out.write("\r" + " " * self._shown + "\r")
            self._shown = 0
