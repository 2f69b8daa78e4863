"""Request bodies recorded elsewhere, brought into a shape one engine accepts: its model's name and one token of output.

``all_bodies`` reads the folder ``requests`` of the test data. Each body comes with its source and the route it belongs to.
"""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.wire.call import CallKind

Body = tuple[str, CallKind, dict[str, Any]]


def all_bodies(folder: Path, model: str, *, stride: int = 1) -> Iterator[Body]:
    """Every body, or every ``stride``-th of the long series (agent sessions, tool prompts)."""
    yield from _cassettes(folder, model)
    yield from _otel(folder, model)
    yield from _every(_tau_bench(folder, model), stride)
    yield from _every(_bfcl(folder, model), stride)
    yield from _every(_agent_sessions(folder, model), stride)


def _every(bodies: Iterator[Body], stride: int) -> Iterator[Body]:
    for index, body in enumerate(bodies):
        if index % stride == 0:
            yield body


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _cassettes(folder: Path, model: str) -> Iterator[Body]:
    limits = {"max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "best_of", "service_tier", "store"}
    for entry in _lines(folder / "openai_api_cassettes.jsonl"):
        kind = next((kind for kind in ROUTES if entry["path"].endswith("/" + ROUTES[kind])), None)
        if kind is None or not isinstance(entry["request"], dict):
            continue
        kept = {key: value for key, value in entry["request"].items() if key not in limits}
        if "tools" in kept:
            kept["tool_choice"] = "none"
        yield f"cassette {entry['name']}", kind, kept | {"model": model, "max_tokens": 1}


ROUTES = {CallKind.CHAT: "chat/completions", CallKind.COMPLETIONS: "completions"}


def _chat(name: str, model: str, messages: list[Any], tools: list[Any] | None = None) -> Body:
    body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 1}
    if tools:
        # with "none" the engine needs no tool parser, and still puts the tools into the template
        body |= {"tools": tools, "tool_choice": "none"}
    return name, CallKind.CHAT, body


def _otel(folder: Path, model: str) -> Iterator[Body]:
    for path in sorted((folder / "otel_inference_perf").glob("*.json")):
        for span in json.loads(path.read_text(encoding="utf-8"))["spans"]:
            messages = span["attributes"].get("gen_ai.input.messages")
            if messages:
                yield _chat(f"otel {path.stem} {span['span_id']}", model, json.loads(messages))


def _tau_bench(folder: Path, model: str) -> Iterator[Body]:
    lines = _lines(folder / "taubench_airline_gpt4o.sessions.jsonl.xz")
    tools = next(lines)["tools"]
    for session in lines:
        messages = session["messages"]
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                yield _chat(f"tau-bench {session['session_id']} turn {index}", model, messages[:index], tools)


def _as_tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": _dict_to_object({key: value for key, value in function.items() if key != "response"})}


def _dict_to_object(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "object" if key == "type" and item == "dict" else _dict_to_object(item) for key, item in value.items()}
    return [_dict_to_object(item) for item in value] if isinstance(value, list) else value


_BFCL_CLASSES = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api", "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api", "TradingBot": "trading_bot", "TravelAPI": "travel_booking", "VehicleControlAPI": "vehicle_control",
}  # fmt: skip


def _bfcl(folder: Path, model: str) -> Iterator[Body]:
    documents = {name: list(_lines(folder / "bfcl" / "func_doc" / f"{file}.jsonl")) for name, file in _BFCL_CLASSES.items()}
    for path in sorted((folder / "bfcl").glob("*.jsonl.xz")):
        for entry in _lines(path):
            functions = entry.get("function") or [doc for name in entry.get("involved_classes", []) for doc in documents[name]]
            messages = [message for turn in entry["question"] for message in turn]
            yield _chat(f"bfcl {entry['id']}", model, messages, [_as_tool(function) for function in functions])


def _agent_sessions(folder: Path, model: str) -> Iterator[Body]:
    for path in sorted((folder / "agent_sessions").glob("*.jsonl.xz")):
        for index, entry in enumerate(_lines(path)):
            name = f"{path.name.split('.')[0]} {index}"
            yield _chat(f"{name} chat", model, [{"role": "user", "content": entry["input"]}])
            yield f"{name} completion", CallKind.COMPLETIONS, {"model": model, "prompt": entry["input"], "max_tokens": 1}
