"""Requests about a response that an engine keeps go where it lives; and waiting for the end of one that goes on in the background.

Of an id whose home is not remembered every replica is asked in turn; what none knows is 404 in the engine's own words. Fails: a response
whose replica is gone is gone with it.
"""

import asyncio
import re
from urllib.parse import quote

from proxy.core.outcome import Outcome, Refusal
from proxy.core.replica import AWAITED_PHASES
from proxy.ports import Headers, Receive, Send, UpstreamError
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest, RelayResult
from proxy.serving.services import Scope, Services, send_answer, target_of
from proxy.serving.stored_responses import Home
from proxy.serving.whole_answer import read_answer
from proxy.wire.answer_forms import RESPONSES
from proxy.wire.answer_usage import Usage
from proxy.wire.typed_streams import ResponseFields, read_response

POLL_S = 2.0  # a place held two seconds too long costs little, and a look costs the engine's front end some 100 us
ASK_S_MAX = 10.0
ID_CHARS_MAX = 512  # vLLM's own have 37; a longer one is no replica's to look for
ANSWER_BYTES_MAX = 16 << 20
_ABOUT = re.compile(r"/v1/responses/([^/]+)(/cancel)?")
_KEPT = frozenset({b"authorization", b"host", b"x-request-id"})  # of a client's headers, for questions of our own
_NOT_FOUND = frozenset({404})


def response_id_of(method: str, path: str) -> str | None:
    """The id of the response that a request is about; None where it is about none."""
    found = _ABOUT.fullmatch(path)
    if found is None or method not in ({"POST"} if found[2] else {"GET", "HEAD"}):
        return None
    return found[1]


class ResponseRoutes:
    """Serves any number of requests; the state is in ``Services``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def serve(self, response_id: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Forward to the replica that keeps the response; ask one after the other where that is not known."""
        services = self._services
        known = services.stored.home(response_id)
        names = [known.replica] if known is not None and known.replica in services.watchers else self._replicas()
        without: str | None = None  # a replica that answered and has no such response
        error = "none is configured"
        for name in names:
            only = len(names) == 1
            result = await self._relay(name, scope, body, receive, send, refuse=frozenset() if only else _NOT_FOUND)
            if result.ended is RelayEnd.REFUSED:
                without = name
                continue
            if result.ended is not RelayEnd.FAILED_BEFORE_HEAD:
                self._seen(name, response_id, result)
                return
            services.watchers[name].suspect()
            error = str(result.error)
        if without is not None:
            await self._relay(without, scope, body, receive, send, refuse=frozenset())
            return
        message = f"The replica that keeps the response could not be spoken to: {error}"
        refusal = Refusal(Outcome.UPSTREAM_FAILED, gate="responses", message=message)
        await send_answer(send, services.refused(refusal))

    async def _relay(
        self, name: str, scope: Scope, body: bytes, receive: Receive, send: Send, *, refuse: frozenset[int]
    ) -> RelayResult:
        services = self._services
        sent = services.upstream_headers(name, list(scope["headers"]))  # type: ignore[call-overload]
        request = RelayRequest(services.watchers[name].policy.url, str(scope["method"]).encode(), target_of(scope), sent, body)
        with services.outstanding.sent(name):
            return await relay(
                receive, send, services.upstream, request, clock=services.clock, form=RESPONSES, refuse_statuses=refuse,
                extra_headers=services.passed(name),
            )  # fmt: skip

    def _replicas(self) -> list[str]:
        """Replicas that may answer, in the order of their load."""
        services = self._services
        names = [name for name, watcher in services.watchers.items() if watcher.phase in AWAITED_PHASES] or list(
            services.watchers
        )
        return sorted(names, key=services.outstanding.on)

    def _seen(self, name: str, response_id: str, result: RelayResult) -> None:
        if result.status == 200:
            self.remember(response_id, name, result.usage)
            if not result.unfinished:
                self._services.stored.look_now(response_id)

    def remember(self, response_id: str, replica: str, usage: Usage | None) -> None:
        """Note where a response lives, and how long its conversation is by now; None while that is not told."""
        services = self._services
        tokens = usage.prompt_tokens + usage.completion_tokens if usage is not None else 0
        services.stored.remember(response_id, Home(replica, tokens), services.policy.limits.responses_max)

    async def find(self, response_id: str, headers: Headers) -> Home | None:
        """Where a response lives: as remembered, else by asking every replica; None where none has it. ``headers`` are the client's."""
        known = self._services.stored.home(response_id)
        if known is not None:
            return known
        for name in self._replicas():
            found = await self.ask(name, response_id, headers)
            if found is not None:
                self.remember(response_id, name, found.as_usage())
                return self._services.stored.home(response_id)
        return None

    async def ask(self, name: str, response_id: str, headers: Headers) -> ResponseFields | None:
        """What a replica says of a response; None where it has none, or does not answer in time."""
        if len(response_id) > ID_CHARS_MAX:
            return None
        services = self._services
        own = services.upstream_headers(name, [field for field in headers if field[0] in _KEPT])
        target = b"/v1/responses/" + quote(response_id, safe="", errors="surrogatepass").encode()  # a client chose it
        try:
            async with asyncio.timeout(ASK_S_MAX):
                response = await services.upstream.open(services.watchers[name].policy.url, b"GET", target, own, b"")
                try:
                    body = await read_answer(response, ANSWER_BYTES_MAX) if response.status == 200 else b""
                finally:
                    response.close()
        except (UpstreamError, TimeoutError):
            return None
        return read_response(body)

    async def finished(self, response_id: str, name: str, headers: Headers) -> ResponseFields | None:
        """Wait until a response in the background has come to its end; None when that was not seen within the policy's bound."""
        services = self._services
        give_up_s = services.clock.now_s() + services.policy.limits.background_s_max
        event = services.stored.watch(response_id)
        services.stored.background += 1
        try:
            while services.clock.now_s() < give_up_s and name in services.watchers:
                event.clear()  # before the look: what is told from now on wants another
                found = await self.ask(name, response_id, headers)
                if found is not None and not found.unfinished:
                    return found
                try:
                    async with asyncio.timeout(POLL_S):
                        await event.wait()
                except TimeoutError:
                    continue
        finally:
            services.stored.background -= 1
            services.stored.unwatch(response_id)
        return None
