"""Where the responses live that engines keep (``/v1/responses`` with ``store``, and those in the background).

vLLM keeps them in the memory of the process that made them: only that one can continue, show or cancel them. Which one that is, is
remembered for the latest ``limits.responses_max`` ids. Each proxy remembers its own; of an id that it does not know, every replica is
asked (``serving.response_routes``), so that several proxies need not share them, and a restart costs a round trip.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Home:
    """The replica (a server) that keeps a response, and the tokens of its conversation, prompt and output; 0 while it runs."""

    replica: str
    tokens: int = 0


class StoredResponses:
    """Homes by response id, the least recently used forgotten first. ``background`` counts places held after the answer."""

    def __init__(self) -> None:
        self.background = 0
        self._homes: OrderedDict[str, Home] = OrderedDict()
        self._watched: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._homes)

    def home(self, response_id: str) -> Home | None:
        """Where it lives, if that is remembered."""
        found = self._homes.get(response_id)
        if found is not None:
            self._homes.move_to_end(response_id)
        return found

    def remember(self, response_id: str, home: Home, responses_max: int) -> None:
        """Note where it lives; at most ``responses_max`` are kept."""
        self._homes[response_id] = home
        self._homes.move_to_end(response_id)
        while len(self._homes) > responses_max:
            self._homes.popitem(last=False)

    def watch(self, response_id: str) -> asyncio.Event:
        """Set when there is reason to look at the response at once."""
        return self._watched.setdefault(response_id, asyncio.Event())

    def unwatch(self, response_id: str) -> None:
        """Nobody waits for its end any more."""
        self._watched.pop(response_id, None)

    def look_now(self, response_id: str) -> None:
        """It was cancelled, or seen finished: whoever waits for its end need not wait for the next look."""
        if response_id in self._watched:
            self._watched[response_id].set()
