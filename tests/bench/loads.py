"""The loads of the main job, the same for the same seed: every prompt its own from its first word on, so that no prefix is shared.

- ``wave``: 120 requests of exactly 400 tokens.
- ``lognormal``: 150 of lengths with median 300 and sigma 0.8, clipped to 20..1,500, each with an honest ``max_tokens``.
- ``natural``: 300 questions whose answers end by themselves under ``max_tokens: 2000``; for a real model.
- ``sudden``: the same for a model of random weights, fast: 300 answers that end at the first of 200 stop tokens, so at any age with the
  same chance, after 250 on average with a vocabulary of 50,000. Nothing that a proxy sees tells their lengths.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.bench.load import LoadRequest

WORDS_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact "
    "month lot right study book eye job word business issue side kind head house service friend father power hour game line end "
    "member law car city community name president team minute idea kid body information back parent face others level office door "
    "health person art war history party result change morning reason research girl guy moment air teacher force education"
)
PROMPT_WORDS = 64  # with the chat template about 95 tokens
TOPICS_TEXT = (
    "the moon|bread|the Roman Empire|photosynthesis|gravity|the piano|earthquakes|honey bees|the printing press|volcanoes|chess|"
    "vaccines|the stock market|rainbows|whales|the steam engine|democracy|glaciers|coffee|the human heart|bicycles|black holes|"
    "Shakespeare|solar panels|the Great Wall|penguins|the internet|salt|magnets|opera"
)
TASKS_TEXT = (
    "What is {}?|Why does {} matter?|Explain {} to a child.|Write a short poem about {}.|List five facts about {}.|"
    "Write a short story in which {} plays a part.|Give me one sentence about {}.|How would you teach a class about {}?|"
    "Describe {} in three paragraphs.|What questions do people ask about {}?"
)
WORDS, TOPICS, TASKS = WORDS_TEXT.split(), TOPICS_TEXT.split("|"), TASKS_TEXT.split("|")
NATURAL_TOKENS_MAX = 2000


def distinct_words(rng: random.Random, words: int) -> str:
    """Return that many random words; two calls differ from the first few on."""
    return " ".join(rng.choices(WORDS, k=words))


def chat(model: str, content: str, *, stream: bool = True, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return target and fields of a chat request."""
    return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream} | fields


def completion(model: str, prompt: str, *, stream: bool = True, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Return target and fields of a completions request."""
    return "/v1/completions", {"model": model, "prompt": prompt, "stream": stream} | fields


def as_request(target: str, fields: dict[str, Any], *, leave_after_s: float | None = None) -> LoadRequest:
    """Return the request with its body encoded; a stream is asked for its usage, which gives exact token counts."""
    stream = bool(fields.get("stream"))
    body = fields | ({"stream_options": {"include_usage": True}} if stream else {})
    return LoadRequest(target, json.dumps(body).encode(), stream, leave_after_s)


def _exact(model: str, seed: int, lengths: list[int], api: Callable[..., tuple[str, dict[str, Any]]]) -> list[LoadRequest]:
    rng = random.Random(seed)
    return [
        as_request(*api(model, distinct_words(rng, PROMPT_WORDS), max_tokens=length, ignore_eos=True, temperature=0.0))
        for length in lengths
    ]


def wave(model: str, seed: int, api: Callable[..., tuple[str, dict[str, Any]]] = chat) -> list[LoadRequest]:
    """Return 120 equal requests: the load under which an ungated engine preempts most."""
    return _exact(model, seed, [400] * 120, api)


def lognormal(model: str, seed: int, api: Callable[..., tuple[str, dict[str, Any]]] = chat) -> list[LoadRequest]:
    """Return 150 requests of spread lengths. The lengths do not depend on the seed: every run does the same work."""
    rng = random.Random(11)
    lengths = [min(1500, max(20, round(rng.lognormvariate(5.703782, 0.8)))) for _ in range(150)]  # ln 300
    return _exact(model, seed, lengths, api)


def natural(model: str, seed: int, api: Callable[..., tuple[str, dict[str, Any]]] = chat) -> list[LoadRequest]:
    """Return 300 different questions in an order of the seed's.

    Answers are sampled without a seed, so two runs differ a little in length: vLLM 0.32's CPU worker dies of a seeded request whose
    prompt is prefilled in pieces ("CPU Generator does not use offset").
    """
    questions = [task.format(topic) for topic in TOPICS for task in TASKS]
    random.Random(seed).shuffle(questions)
    return [as_request(*api(model, question, max_tokens=NATURAL_TOKENS_MAX, temperature=0.7)) for question in questions]


def sudden(model: str, seed: int, api: Callable[..., tuple[str, dict[str, Any]]] = chat) -> list[LoadRequest]:
    """Return 300 requests that end by chance. The stop tokens do not depend on the seed: every run has the same mean length."""
    stops = random.Random(12).sample(range(1000, 49_000), 200)
    rng = random.Random(seed)
    fields: dict[str, Any] = {"max_tokens": NATURAL_TOKENS_MAX, "temperature": 1.0, "stop_token_ids": stops}
    return [as_request(*api(model, distinct_words(rng, PROMPT_WORDS), **fields)) for _ in range(300)]


LOADS: dict[str, Callable[..., list[LoadRequest]]] = {"wave": wave, "lognormal": lognormal, "natural": natural, "sudden": sudden}
LEARNING = frozenset({"natural", "sudden"})  # loads whose lengths kvgate has to learn
APIS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {"chat": chat, "completions": completion}
