"""The last rung: tokens estimated from bytes, on the safe side.

``tokens = ceil(1.2 × (q × bytes + i × media items)) + 64 + 8 × messages`` for a chat, 160 more with tools, and
``ceil(1.2 × q × bytes) + 4`` for a completion; a template and its arguments, where a request brings them, are bytes too. ``q`` is the
95th percentile of tokens per byte over the last 256 finished calls of the model and route, 0.5 (two bytes a token) until eight were
seen; ``i`` the same for tokens per media item of each kind (image, audio, video, a piece of speech), large at first. A conversation
stored in the engine comes on top by its own bound. Fails high on short prompts by the constants, low on text unlike what was seen before
(another script), which the factor covers only in part, and on a template that writes a text more than once. Never zero.
"""

import math
from collections import OrderedDict, deque

from proxy.core.demand import PromptPart
from proxy.wire.body_fields import json_bytes
from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import utf8_bytes

SAFETY = 1.2
QUANTILE = 0.95
SAMPLES_MAX = 256
SAMPLES_MIN = 8
TOKENS_PER_BYTE_FIRST = 0.5
# What common models take at most for an item of ordinary size: a photograph of a megapixel, five minutes of speech, a minute of video. A
# piece of speech is half a minute: Whisper's encoder makes 1,500 positions of it.
TOKENS_PER_MEDIA_ITEM_FIRST = {"image": 1536.0, "audio": 4096.0, "video": 16384.0, "other": 1536.0, "speech": 1536.0}
# A row of hidden states in base64 is at least this long (512 dimensions of bfloat16); rows are tokens.
TOKENS_PER_EMBEDS_BYTE_FIRST = 1 / 1366
MESSAGE_TOKENS = 8
TEMPLATE_TOKENS = 64
TOOLS_TOKENS = 160  # what a template says about tools before and after it lists them
COMPLETION_TOKENS = 4
LEARNT_BYTES_MIN = 256  # in shorter prompts the template's own tokens dominate
# Clients choose model names; what is remembered of them is bounded.
KEYS_MAX = 512


class _HighQuantile:
    """The 95th percentile of the latest samples, ``first`` until there are enough."""

    __slots__ = ("_first", "_samples", "_sum", "_value")

    def __init__(self, first: float) -> None:
        self._first = first
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._sum = 0.0
        self._value: float | None = None

    def add(self, sample: float) -> None:
        if len(self._samples) == SAMPLES_MAX:
            self._sum -= self._samples[0]
        self._samples.append(sample)
        self._sum += sample
        self._value = None

    def mean(self) -> float | None:
        """None until there are enough."""
        seen = len(self._samples)
        return self._sum / seen if seen >= SAMPLES_MIN else None

    def value(self) -> float:
        if len(self._samples) < SAMPLES_MIN:
            return self._first
        if self._value is None:
            ordered = sorted(self._samples)
            self._value = ordered[min(len(ordered) - 1, math.ceil(QUANTILE * len(ordered)) - 1)]
        return self._value


_FIRST = {"text": TOKENS_PER_BYTE_FIRST, "embeds": TOKENS_PER_EMBEDS_BYTE_FIRST} | TOKENS_PER_MEDIA_ITEM_FIRST


class RatioCounter:
    """Learns per model and route. Not shared between threads."""

    def __init__(self) -> None:
        self._quantiles: OrderedDict[tuple[str | None, CallKind, str], _HighQuantile] = OrderedDict()

    def estimate(self, call: Call, context_tokens_max: int | None) -> tuple[PromptPart, ...]:
        """One part per prompt, each at least one token and at most the context (beyond it the engine refuses)."""
        if call.chats:
            sizes = [call.history_tokens + size for size in self._chats(call)]
        else:
            embeds = self._rate(call, "embeds")
            sizes = [SAFETY * embeds * size for size in call.embeds_bytes]
            sizes += [self._prompt(call, prompt) for prompt in call.prompts]
        limit = math.inf if context_tokens_max is None else max(1, context_tokens_max)
        return tuple(PromptPart(int(min(max(1, math.ceil(size)), limit))) for size in sizes) or (PromptPart(1),)

    def expected(self, call: Call) -> int | None:
        """Tokens that so many bytes of text had on average: no safe guess, but the likeliest. None until enough were seen."""
        found = self._quantiles.get((call.model, call.kind, "text"))
        mean = None if found is None else found.mean()
        return None if mean is None else max(1, round(mean * call.prompt_bytes) + _message_tokens(call))

    def learn(self, call: Call, prompt_tokens: int) -> None:
        """Take in the engine's count over all prompts of ``call``."""
        if call.truncate_prompt_tokens is not None or call.previous_response_id is not None:
            return
        if call.embeds_bytes:
            if not call.prompts:
                self._quantile(call, "embeds").add(prompt_tokens / max(1, sum(call.embeds_bytes)))
            return
        if call.media:
            fixed = sum(map(_fixed_tokens, call.chats))
            text = fixed + self._rate(call, "text") * call.prompt_bytes
            if len(call.media) == 1:  # else nobody knows which kind took what
                ((kind, count),) = call.media
                self._quantile(call, kind).add(max(1.0, (prompt_tokens - text) / count / _times_counted(call)))
        elif call.prompt_bytes >= LEARNT_BYTES_MIN and sum(map(_argument_bytes, call.chats)) < LEARNT_BYTES_MIN:
            self._quantile(call, "text").add(max(0.0, prompt_tokens - _message_tokens(call)) / call.prompt_bytes)

    def _chats(self, call: Call) -> list[float]:
        """Tokens of each conversation. Which of several holds the media is not known: each counts them all."""
        media = sum(self._rate(call, kind) * count for kind, count in call.media)
        rate = self._rate(call, "text")
        return [SAFETY * (rate * (chat.text_bytes + _argument_bytes(chat)) + media) + _fixed_tokens(chat) for chat in call.chats]

    def _prompt(self, call: Call, prompt: str | tuple[int, ...]) -> float:
        if isinstance(prompt, tuple):
            return len(prompt)
        return SAFETY * self._rate(call, "text") * utf8_bytes(prompt) + COMPLETION_TOKENS

    def _rate(self, call: Call, what: str) -> float:
        key = (call.model, call.kind, what)
        found = self._quantiles.get(key)
        return _FIRST[what] if found is None else found.value()

    def _quantile(self, call: Call, what: str) -> _HighQuantile:
        key = (call.model, call.kind, what)
        found = self._quantiles.get(key)
        if found is None:
            found = self._quantiles[key] = _HighQuantile(_FIRST[what])
            if len(self._quantiles) > KEYS_MAX:
                self._quantiles.popitem(last=False)
        else:
            self._quantiles.move_to_end(key)
        return found


def _times_counted(call: Call) -> int:
    """In how many prompts each item is: pieces of speech have one each."""
    return len(call.chats) if call.kind is CallKind.SPEECH else 1


def _argument_bytes(chat: ChatPrompt) -> int:
    """What a template may write beside the conversation: the request's arguments, and the text of a template of its own."""
    arguments = json_bytes(chat.template_kwargs) if chat.template_kwargs else 0
    return arguments + (0 if chat.chat_template is None else utf8_bytes(chat.chat_template))


def _message_tokens(call: Call) -> int:
    chats = call.chats
    return MESSAGE_TOKENS * (len(chats[0].messages) if len(chats) == 1 else sum(len(chat.messages) for chat in chats))


def _fixed_tokens(chat: ChatPrompt) -> int:
    if not chat.messages:  # texts that go to the model without a template
        return 2 * COMPLETION_TOKENS
    return TEMPLATE_TOKENS + MESSAGE_TOKENS * len(chat.messages) + (TOOLS_TOKENS if chat.tools else 0)
