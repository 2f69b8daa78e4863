"""Answers of chat and completions, byte shapes as vLLM 0.32 writes them, streamed and whole.

Key order, nulls and which chunk carries the fingerprint are the real server's; a test compares them with recorded answers. Chunks are
cut from templates made once per request, so a token costs a join and not a serialisation.
"""

import json
from dataclasses import dataclass
from typing import Any

from proxy.sim.engine_requests import FinishReason
from proxy.sim.mock_errors import dump
from proxy.sim.mock_requests import Generation, Route
from proxy.sim.mock_text import CYCLE_TOKENS, MockVoice


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class Choice:
    """One output on its way. ``natural_tokens`` is where it ends by itself, None for never; ``cut`` the text length a stop string leaves.

    Without ``cut`` the natural end is the end token, which counts as a token and has no text.
    """

    index: int
    prompt: list[int]
    entry: int
    natural_tokens: int | None
    cut: int | None = None
    stop_reason: str | None = None
    tokens: int = 0
    characters: int = 0
    reason: FinishReason | None = None

    def advance(self, voice: MockVoice, reason: FinishReason | None) -> str:
        """Count one more token and return the text it adds."""
        self.tokens += 1
        self.reason = reason
        if reason is FinishReason.STOP and self.cut is None:
            return ""
        piece = voice.pieces[(self.entry + self.tokens - 1) % CYCLE_TOKENS]
        if self.cut is not None and self.characters + len(piece) > self.cut:
            piece = piece[: max(0, self.cut - self.characters)]
        self.characters += len(piece)
        return piece

    def token_ids(self, voice: MockVoice, start: int, end_token_id: int) -> list[int]:
        """Ids of the tokens from ``start`` to the last one so far."""
        ids = [voice.token_id(self.entry, position) for position in range(start, self.tokens)]
        if ids and self.reason is FinishReason.STOP and self.cut is None:
            ids[-1] = end_token_id
        return ids

    @property
    def stop_reason_shown(self) -> str | None:
        """The stop string that ended it."""
        return self.stop_reason if self.reason is FinishReason.STOP else None


def plan_choices(request: Generation, voice: MockVoice) -> list[Choice]:
    """The outputs of a request: prompts in order, n of each."""
    choices = []
    for number, prompt in enumerate(request.prompts):
        for copy in range(request.n):
            fingerprint = voice.fingerprint(prompt, copy)
            natural = None if request.ignore_eos else max(voice.length(fingerprint), request.min_tokens + 1)
            choice = Choice(number * request.n + copy, prompt, voice.entry(fingerprint), natural)
            if request.stop:
                _apply_stop(choice, request, voice, request.limits[number])
            choices.append(choice)
    return choices


def _apply_stop(choice: Choice, request: Generation, voice: MockVoice, limit: int) -> None:
    """End the output with the token that completes a stop string, if one comes before its natural end."""
    last = limit if choice.natural_tokens is None else min(limit, choice.natural_tokens - 1)
    text = voice.text(choice.entry, last)
    after = len(voice.text(choice.entry, min(request.min_tokens, last)))
    found = [(text.find(stop, after) + len(stop), stop) for stop in request.stop if text.find(stop, after) >= 0]
    if not found:
        return
    end, stop = min(found)
    tokens, length = 0, 0
    while length < end:
        length += len(voice.pieces[(choice.entry + tokens) % CYCLE_TOKENS])
        tokens += 1
    choice.natural_tokens = tokens
    choice.cut = end if request.stop_in_output else end - len(stop)
    choice.stop_reason = stop


class AnswerWriter:
    """Bytes of one request's answer. ``echo_texts`` are the prompts' texts where the client wants them back, else empty."""

    def __init__(
        self,
        request: Generation,
        voice: MockVoice,
        *,
        model: str,
        created: int,
        fingerprint: str,
        end_token_id: int,
        echo_texts: list[str],
    ) -> None:
        self._request = request
        self._voice = voice
        self._model = model
        self._created = created
        self._fingerprint = fingerprint
        self._end_token_id = end_token_id
        self._echo_texts = echo_texts
        self._chat = request.route is Route.CHAT
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        self._head = (
            f'data: {{"id":{_json(request.request_id)},"object":"{kind}","created":{created},"model":{_json(model)},"choices":['
        )
        self._plain = not (request.usage_continuous or request.token_ids_wanted or request.echo)
        text_key = '"delta":{"content":' if self._chat else '"text":'
        self._prefixes = [f'{self._head}{{"index":{index},{text_key}' for index in range(len(request.prompts) * request.n)]
        if self._chat:
            self._tail = '},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        else:
            self._tail = (
                ',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
            )

    def _usage(self, prompt_tokens: int, completion_tokens: int, **details: Any) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            **details,
        }

    def opening(self) -> bytes:
        """The chunks that come with the first token: chat sends the role once per choice."""
        if not self._chat:
            return b""
        request = self._request
        prompt = request.prompts[0]
        usage = (
            f',"usage":{_json(self._usage(len(prompt), 0, completion_tokens_details=None))}' if request.usage_continuous else ""
        )
        ids = _json(prompt) if request.token_ids_wanted else "null"
        return "".join(
            f'{self._head}{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]'
            f'{usage},"prompt_token_ids":{ids},"prompt_text":null}}\n\n'
            for index in range(request.n)
        ).encode()

    def chunk(self, choice: Choice, text: str, tokens: int) -> bytes:
        """The chunk of the last ``tokens`` tokens of a choice."""
        if self._plain and choice.reason is None:
            return f"{self._prefixes[choice.index]}{_json(text)}{self._tail}".encode()
        request = self._request
        first = choice.tokens == tokens
        ids = choice.token_ids(self._voice, choice.tokens - tokens, self._end_token_id) if request.token_ids_wanted else None
        body: dict[str, Any] = {"index": choice.index}
        reason = None if choice.reason is None else choice.reason.value
        if self._chat:
            body |= {"delta": {"content": text}, "logprobs": None, "finish_reason": reason}
            if reason is not None:
                body["stop_reason"] = choice.stop_reason_shown
        else:
            if first and request.echo:
                text = self._echoed(choice, text, ids_wanted=request.token_ids_wanted)
            shown = choice.prompt if first and (request.echo or request.token_ids_wanted) else None
            body |= {"text": text, "logprobs": None, "finish_reason": reason, "stop_reason": choice.stop_reason_shown}
            body["prompt_token_ids"] = shown
        body["token_ids"] = ids
        tail = ""
        # Chat writes its usage after the choices, completions after the fingerprint; only one of the two is ever there.
        if request.usage_continuous:
            details: dict[str, Any] = {"completion_tokens_details": None} if self._chat else {}
            tail = f',"usage":{_json(self._usage(len(choice.prompt), choice.tokens, **details))}'
        if reason is not None and not request.usage_wanted:
            tail += f',"system_fingerprint":"{self._fingerprint}"'
        return f"{self._head}{_json(body)}]{tail}}}\n\n".encode()

    def _echoed(self, choice: Choice, text: str, *, ids_wanted: bool) -> str:
        prompt_text = "" if ids_wanted else self._echo_texts[choice.index // self._request.n]
        return prompt_text if self._request.echo_only else prompt_text + text

    def closing(self, choices: list[Choice]) -> bytes:
        """The usage chunk where wanted, and the end mark."""
        if not self._request.usage_wanted:
            return b"data: [DONE]\n\n"
        usage = _json(self._total(choices))
        return f'{self._head}],"usage":{usage},"system_fingerprint":"{self._fingerprint}"}}\n\ndata: [DONE]\n\n'.encode()

    def _total(self, choices: list[Choice]) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt) for prompt in self._request.prompts)
        return self._usage(prompt_tokens, sum(choice.tokens for choice in choices))

    def whole(self, choices: list[Choice], texts: list[str]) -> bytes:
        """The answer of a request that did not stream."""
        request = self._request
        shown = [self._whole_choice(choice, text) for choice, text in zip(choices, texts, strict=True)]
        body: dict[str, Any] = {
            "id": request.request_id,
            "object": "chat.completion" if self._chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": shown,
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": self._total(choices) | {"prompt_tokens_details": None, "completion_tokens_details": None},
        }
        if self._chat:
            body["prompt_logprobs"] = None
            body["prompt_token_ids"] = request.prompts[0] if request.token_ids_wanted else None
            body["prompt_text"] = None
        return dump(body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None})

    def _whole_choice(self, choice: Choice, text: str) -> dict[str, Any]:
        request = self._request
        ids = choice.token_ids(self._voice, 0, self._end_token_id) if request.token_ids_wanted else None
        ending = {
            "finish_reason": None if choice.reason is None else choice.reason.value,
            "stop_reason": choice.stop_reason_shown,
        }
        if self._chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            return {
                "index": choice.index,
                "message": message,
                "logprobs": None,
                **ending,
                "token_ids": ids,
                "routed_experts": None,
            }
        if request.echo:
            text = self._echoed(choice, text, ids_wanted=request.token_ids_wanted)
        prompt = choice.prompt if request.token_ids_wanted else None
        shown = {"index": choice.index, "text": text, "logprobs": None, **ending, "token_ids": ids}
        return shown | {"prompt_logprobs": None, "prompt_token_ids": prompt, "routed_experts": None}
