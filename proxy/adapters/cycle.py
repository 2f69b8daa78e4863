"""One request and its answer, as uvicorn has them, but that the answer may flow on without its application."""

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Cycle(RequestResponseCycle):
    """uvicorn's. ``flows_on``: the application has returned before its answer was whole, and another is run to end it."""

    flows_on = False

    def start(self, app: Any, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[None]]) -> None:
        """Run an application in a task of its own, which is among the server's ``tasks`` until it ends."""
        task = loop.create_task(self.run_asgi(app))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def run_asgi(self, app: Any) -> None:
        """Run an application as uvicorn does. An answer that flows on is shown to it as a whole one, for it would cut it off."""
        on_response = self.on_response
        await super().run_asgi(partial(self._run, app))
        if self.flows_on:
            self.response_complete, self.on_response = False, on_response

    async def _run(self, app: Any, *asgi: Any) -> None:
        await app(*asgi)
        if self.flows_on:
            self.response_complete = True  # nothing runs between here and where it is taken back
