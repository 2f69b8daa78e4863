"""Where the responses live that engines keep (``/v1/responses`` with ``store``, and those in the background).

vLLM keeps them in the memory of the process that made them: only that one can continue, show or cancel them. Which one that is, is
remembered for the latest ``limits.responses_max`` ids. Proxies that share a store tell each other of theirs with the next beat
(``serving.exchange``); of an id that is not known, every replica is asked (``serving.response_routes``).

Fails: what is new while the store is out of touch is told afterwards, the latest ``UNTOLD_MAX``; the others' proxies ask for the rest.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.ports.store import KeptResponse

UNTOLD_MAX = 1000  # a beat's worth at some thousands a second; what is lost costs a question to each replica


@dataclass(frozen=True, slots=True)
class Home:
    """The replica (a server) that keeps a response, and the tokens of its conversation, prompt and output; 0 while it runs."""

    replica: str
    tokens: int = 0


class StoredResponses:
    """Homes by response id, the least recently used forgotten first. ``background`` counts places held after the answer."""

    def __init__(self) -> None:
        self.background = 0
        self.shared = False  # whether there are others to tell
        self._untold: deque[KeptResponse] = deque(maxlen=UNTOLD_MAX)
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
        if self.shared and self._homes.get(response_id) != home:
            self._untold.append(KeptResponse(response_id, home.replica, home.tokens))
        self._keep(response_id, home, responses_max)

    def take_untold(self) -> tuple[KeptResponse, ...]:
        """What the others are to be told, once."""
        untold = tuple(self._untold)
        self._untold.clear()
        return untold

    def hear(self, told: Sequence[KeptResponse], responses_max: int) -> None:
        """Other proxies saw these."""
        for one in told:
            known = self._homes.get(one.response_id)
            if known is None or known.replica == one.replica:  # it does not move: what we saw ourselves, or heard first, stands
                self._keep(one.response_id, Home(one.replica, one.tokens), responses_max)

    def _keep(self, response_id: str, home: Home, responses_max: int) -> None:
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
