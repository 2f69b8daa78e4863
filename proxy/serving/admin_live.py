"""The live page on the admin port, and what feeds it.

    GET /                              the page (``proxy/serving/page``): HTML, CSS and scripts, nothing from elsewhere
    GET /page/NAME                     its parts
    GET /admin/live?samples_after=N&ended_after=N    ``wire.live_report``; N is the last number that the caller has, 0 at first

None of it changes anything: the page's switches use ``/admin/mode`` and ``/admin/drains``, which need the admin token. The page may run
no script but its own, load nothing from elsewhere, send nothing elsewhere, and stand in nobody's frame.
"""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import response_of
from proxy.serving.live_view import LiveView
from proxy.serving.services import Services

NUMBER_MAX = 2**53 - 1  # a script's largest whole number
PARTS = {
    "style.css": "text/css; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "chart.js": "text/javascript; charset=utf-8",
    "text.js": "text/javascript; charset=utf-8",
    "replicas.js": "text/javascript; charset=utf-8",
    "lists.js": "text/javascript; charset=utf-8",
    "switches.js": "text/javascript; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
FIELDS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def live_routes(services: Services) -> list[Route]:
    """Where the page and its feed are had."""
    view = LiveView(services)
    folder = files("proxy.serving") / "page"
    page = (folder / "index.html").read_bytes()
    parts = {name: (folder / name).read_bytes() for name in PARTS}

    async def index(_: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=FIELDS)

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in parts:
            return response_of(error_answer(404, "no_such_part", "The live page has no such part."))
        return Response(parts[name], media_type=PARTS[name], headers=FIELDS)

    async def live(request: Request) -> Response:
        numbers = [_number(request, name) for name in ("samples_after", "ended_after")]
        if None in numbers:
            message = f"samples_after and ended_after are whole numbers from 0 to {NUMBER_MAX}"
            return response_of(error_answer(400, "invalid_value", message))
        samples_after, ended_after = (number or 0 for number in numbers)
        return Response(view.report(samples_after, ended_after), media_type="application/json", headers=FIELDS)

    return [Route("/", index), Route("/page/{name}", part), Route("/admin/live", live)]


def _number(request: Request, name: str) -> int | None:
    """The query's number of that name, 0 without one; None where it is no such number."""
    text = request.query_params.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX))):
        return None
    number = int(text)
    return number if number <= NUMBER_MAX else None
