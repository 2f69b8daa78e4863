"""``kvgate mock-vllm``: an HTTP server that behaves like vLLM 0.32 without a model.

The engine model schedules in real time, the shipped tokenizer counts, and the answers have the real server's bytes. Raw ASGI: a token
costs one chunk and one send.
"""

import argparse
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

import uvicorn

from proxy.sim.mock_answers import AnswerWriter, plan_choices
from proxy.sim.mock_errors import (
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    UNAUTHORIZED,
    ApiError,
    dump,
    scale_out_disabled,
    wrong_content_type,
)
from proxy.sim.mock_fields import read_json
from proxy.sim.mock_generation import EnginePool, collect_answer, stream_answer, watching
from proxy.sim.mock_metrics import ServerCounts, expose
from proxy.sim.mock_pause import pause_routes
from proxy.sim.mock_requests import ModelCard, Route, read_generation
from proxy.sim.mock_settings import MockSettings, add_arguments, settings_from
from proxy.sim.mock_text import TOKENIZER_DIRECTORY, MockTokenizer, MockVoice
from proxy.sim.mock_tokens import detokenize, tokenize
from proxy.sim.mock_wire import JSON_TYPE, AsgiApp, Receive, Scope, Send, answer, answer_error, header, read_body

__all__ = ["MockServer", "MockSettings", "add_arguments", "build_app", "run"]

Handler = Callable[[Scope, Receive, Send], Awaitable[int]]

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
SCALE_OUT = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/inference/v1/generate",
    "/inference/v1/abort_requests",
)
UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}  # not in http_requests_total
CLIENT_LEFT = 499  # never on the wire
PATCH_LEVELS = {"0.32": "0.32.0"}


class MockServer:
    """The ASGI application. ``wall_ns`` stamps answers and decides nothing."""

    def __init__(self, settings: MockSettings, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._settings = settings
        self._wall_ns = wall_ns
        self._started_s = wall_ns() / 1e9
        self._card = ModelCard(settings.model, settings.engine.max_model_len)
        self.tokenizer = MockTokenizer()
        self._voice = MockVoice(
            self.tokenizer, seed=settings.seed, output_median=settings.output_median, output_sigma=settings.output_sigma
        )
        self.pool = EnginePool(settings, self._voice)
        self._version = PATCH_LEVELS.get(settings.metrics_version, str(settings.metrics_version))
        self._fingerprint = f"vllm-{self._version}-{settings.seed & 0xFFFFFFFF:08x}"
        self._open_requests = 0
        self._http: dict[tuple[str, str, str], int] = {}
        self._routes: dict[str, dict[str, Handler]] = {
            "/v1/chat/completions": {"POST": self._generation(Route.CHAT)},
            "/v1/completions": {"POST": self._generation(Route.COMPLETIONS)},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._healthy},
            "/ping": {"GET": self._healthy, "POST": self._healthy},
            "/version": {"GET": self._json(lambda: {"version": self._version})},
            "/load": {"GET": self._json(lambda: {"server_load": self._open_requests if settings.track_load else 0})},
            "/kv_event_sources": {"GET": self._json(dict)},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokens(tokenize)},
            "/detokenize": {"POST": self._tokens(detokenize)},
            **{path: {"POST": self._scale_out} for path in SCALE_OUT},
            **pause_routes(self.pool),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, or the server's lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path, method = scope["path"], scope["method"]
        methods = self._routes.get(path)
        if self._unauthorized(scope):
            await answer_error(send, UNAUTHORIZED)
            status, label = 401, path
        elif methods is None and path.rstrip("/") in self._routes:
            location = f"http://{header(scope, b'host') or ''}{path.rstrip('/')}".encode("latin-1")
            await answer(send, 307, b"", None, [(b"location", location)])
            status, label = 307, path
        elif methods is None:
            await answer_error(send, NOT_FOUND)
            status, label = 404, "none"
        elif method not in methods:
            await answer_error(send, METHOD_NOT_ALLOWED, [(b"allow", next(iter(methods)).encode())])
            status, label = 405, "none"
        else:
            status, label = await self._handle(methods[method], scope, receive, send), path
        if path not in UNCOUNTED:
            key = (label, method, f"{status // 100}xx")
            self._http[key] = self._http.get(key, 0) + 1

    async def _handle(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> int:
        try:
            return await handler(scope, receive, send)
        except ApiError as error:
            await answer_error(send, error)
            return error.status

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.pool.ensure_running()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.pool.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _unauthorized(self, scope: Scope) -> bool:
        key = self._settings.api_key
        if key is None or scope["method"] == "OPTIONS" or not scope["path"].startswith(GUARDED):
            return False
        return header(scope, b"authorization") != f"Bearer {key}"

    def _generation(self, route: Route) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send) -> int:
            body = await self._read(scope, receive)
            if body is None:
                return CLIENT_LEFT
            self._open_requests += 1
            try:
                return await self._generate(route, body, scope, receive, send)
            finally:
                self._open_requests -= 1

        return handle

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        body = await read_body(receive)
        kind = header(scope, b"content-type") or ""
        if kind.split(";")[0].lower() != "application/json":
            raise wrong_content_type()
        return body

    async def _generate(self, route: Route, body: bytes, scope: Scope, receive: Receive, send: Send) -> int:
        self.pool.ensure_running()
        request = read_generation(
            route,
            read_json(body),
            card=self._card,
            tokenizer=self.tokenizer,
            header_id=header(scope, b"x-request-id"),
            fresh_id=uuid.uuid4().hex[:16],
        )
        self.pool.check_limits(len(request.prompts) * request.n)
        choices = plan_choices(request, self._voice)
        writer = AnswerWriter(
            request,
            self._voice,
            model=self._card.name,
            created=self._wall_ns() // 1_000_000_000,
            fingerprint=self._fingerprint,
            end_token_id=self.tokenizer.end_token_id,
            echo_texts=[self.tokenizer.decode(prompt) for prompt in request.prompts] if request.echo else [],
        )
        rank = header(scope, b"x-data-parallel-rank")
        sink = self.pool.open_sink()
        abort = self.pool.submit(request, choices, sink, int(rank) if rank is not None and rank.isdigit() else None)
        async with watching(receive, sink):
            try:
                if request.stream:
                    await stream_answer(send, writer, choices, sink, self._voice, request.stream_interval)
                    return 200
                texts = await collect_answer(choices, sink, self._voice)
            finally:
                abort()
        if texts is None:
            return CLIENT_LEFT
        await answer(send, 200, writer.whole(choices, texts), headers=self._load_report(scope))
        return 200

    def _load_report(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The ORCA header, where the client asks for it and log stats are on."""
        form = header(scope, b"endpoint-load-metrics-format")
        if form is None or not self._settings.log_stats:
            return []
        gauges = self.pool.engines[0].published.gauges
        named = {"num_requests_waiting": float(gauges.waiting), "kv_cache_usage_perc": gauges.usage_ratio}
        if form.upper() == "JSON":
            inside = ", ".join(f'"{name}": {value}' for name, value in named.items())
            return [(b"endpoint-load-metrics", f'JSON {{"named_metrics": {{{inside}}}}}'.encode())]
        return [(b"endpoint-load-metrics", ("TEXT " + ", ".join(f"named_metrics.{k}={v}" for k, v in named.items())).encode())]

    def _tokens(self, work: Callable[[bytes, MockTokenizer, ModelCard], bytes]) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send) -> int:
            body = await self._read(scope, receive)
            if body is None:
                return CLIENT_LEFT
            await answer(send, 200, work(body, self.tokenizer, self._card))
            return 200

        return handle

    def _json(self, make: Callable[[], dict[str, object]]) -> Handler:
        async def handle(_scope: Scope, _receive: Receive, send: Send) -> int:
            await answer(send, 200, dump(make()))
            return 200

        return handle

    async def _healthy(self, _scope: Scope, _receive: Receive, send: Send) -> int:
        await answer(send, 200, b"", None)
        return 200

    async def _scale_out(self, _scope: Scope, _receive: Receive, _send: Send) -> int:
        raise scale_out_disabled()

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> int:
        created = self._wall_ns() // 1_000_000_000
        permission = {"id": f"modelperm-{uuid.uuid4().hex[:16]}", "object": "model_permission", "created": created}
        permission |= {
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
        }
        permission |= {"allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False}
        name = self._card.name
        card = {"id": name, "object": "model", "created": created, "owned_by": "vllm", "root": str(TOKENIZER_DIRECTORY)}
        card |= {"parent": None, "max_model_len": self._card.context_tokens_max, "permission": [permission]}
        await answer(send, 200, dump({"object": "list", "data": [card]}), JSON_TYPE)
        return 200

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> int:
        settings = self._settings
        counts = ServerCounts(self._http, self.pool.rejections, self._started_s)
        text = expose(settings.metrics_version, settings.model, self.pool.engines, counts, log_stats=settings.log_stats)
        await answer(send, 200, text.encode(), b"text/plain; version=1.0.0; charset=utf-8")
        return 200


def build_app(settings: MockSettings) -> AsgiApp:
    """The server as an ASGI application, for uvicorn in this process or its own."""
    return MockServer(settings)


class _Server(uvicorn.Server):
    """Told to stop, it cuts open streams instead of waiting for their ends, as the real server does."""

    def __init__(self, config: uvicorn.Config, app: MockServer) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Hang up on everyone, then close."""
        self._app.pool.hang_up()
        await super().shutdown(sockets)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    try:
        settings = settings_from(args)
    except ValueError as error:
        sys.stderr.write(f"kvgate mock-vllm: {error}\n")
        return 2
    try:
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        listener = socket.create_server((args.host, args.port), family=family, backlog=2048)
    except OSError as error:
        sys.stderr.write(
            f"kvgate mock-vllm: cannot listen on {args.host} port {args.port}: {error.strerror}; choose another --port\n"
        )
        return 1
    app = MockServer(settings)
    # Idle connections close after 5 s, as the real server's do. Below critical, uvicorn would report every stream that was cut.
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_keep_alive=5, ws="none")
    port = listener.getsockname()[1]
    sys.stderr.write(f"mock vLLM {settings.metrics_version} serves {settings.model!r} on http://{args.host}:{port}\n")
    with suppress(KeyboardInterrupt), listener:
        _Server(config, app).run(sockets=[listener])
    return 0
