"""Prompts of exact length: texts that the served model's own tokenizer turns into as many tokens as the workload says.

Texts are made of words that are one token each, with the space before them. Equal blocks of a workload (a shared system prompt, a session's
earlier turns) get equal words, so an engine's prefix cache finds what the workload says it should; other prompts share nothing but the chat
template's head. The whole rendered prompt is then counted, template and special tokens included, and words are added or taken away at
its end until the count is right.

Fails: a prompt shorter than what the template itself takes is as short as it can be; ``exact`` then says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from proxy.adapters.chat_template import ChatTemplateError
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.sim.sim_request import SimRequest
from proxy.sim.train_tokenizer import ADJECTIVES, GLUE, NOUNS, VERBS

TOKEN_BYTES = 4  # packed ids
WORDS_MIN = 32  # fewer would make prompts alike by chance
ROUNDS_MAX = 12


class PromptError(Exception):
    """Prompts cannot be made for this model; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text; ``tokens`` as the engine will count it, ``exact`` whether that is what was asked for."""

    text: str
    tokens: int
    exact: bool


class PromptMaker:
    """Makes prompts for one model. ``chat`` is whether they are sent as a chat's only message. Equal seeds give equal texts.

    Raises PromptError where the tokenizer cannot count such prompts.
    """

    def __init__(self, tokenizer: LoadedTokenizer, *, chat: bool, block_size: int, seed: int, shared_tokens: int = 0) -> None:
        if chat and (tokenizer.chat_refusal or tokenizer.template(False) is None):
            why = tokenizer.chat_refusal or "the model has no chat template"
            raise PromptError(f"{tokenizer.name}: chats cannot be counted here ({why}): use --api completions")
        self._tokenizer = tokenizer
        self._chat = chat
        self._block_size = block_size
        self._seed = seed
        self._words = single_token_words(tokenizer)
        self._shared = self._fill("shared by all", shared_tokens)
        self.count: Callable[[str], int] = self._count_chat if chat else self._count_plain
        self.least = self.count(self._words[0])

    def make(self, request: SimRequest) -> Prompt:
        """The prompt of a request, shared prefix included. Safe from several threads."""
        goal = request.prompt_tokens + len(self._shared)
        named = [word for block in request.block_hashes for word in self._fill(f"block {block}", self._block_size)]
        own = self._fill(f"{self._seed} {request.request_id}", max(0, request.prompt_tokens - len(named)))
        return self._fit([*self._shared, *named, *own], goal, Random(f"{self._seed} more {request.request_id}"))

    def _fit(self, words: list[str], goal: int, rng: Random) -> Prompt:
        found = 0
        for _ in range(ROUNDS_MAX):
            text = " ".join(words)
            found = self.count(text)
            missing = goal - found
            if missing == 0 or (missing < 0 and len(words) == 1):
                break
            words = [*words, *rng.choices(self._words, k=missing)] if missing > 0 else words[: max(1, len(words) + missing)]
        return Prompt(text, found, found == goal)

    def _fill(self, name: str, tokens: int) -> list[str]:
        return Random(name).choices(self._words, k=tokens)

    def _count_plain(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=True)) // TOKEN_BYTES

    def _count_chat(self, text: str) -> int:
        template = self._tokenizer.template(False)
        if template is None:
            raise PromptError(f"{self._tokenizer.name}: no chat template")
        content = [{"type": "text", "text": text}] if template.wants_parts else text
        try:
            rendered = template.render(
                [{"role": "user", "content": content}],
                tools=None, documents=None, kwargs=self._tokenizer.template_kwargs, add_generation_prompt=True,
                continue_final_message=False,
            )  # fmt: skip
        except ChatTemplateError as error:
            raise PromptError(f"{self._tokenizer.name}: {error}: use --api completions") from error
        return len(self._tokenizer.encode(rendered, add_special_tokens=False)) // TOKEN_BYTES


def single_token_words(tokenizer: LoadedTokenizer) -> list[str]:
    """Words that are one token each behind a space. Raises PromptError where there are too few."""
    words = dict.fromkeys([*NOUNS, *VERBS, *ADJECTIVES, *GLUE])
    found = []
    for word in words:
        twice = len(tokenizer.encode(f"a {word} {word}", add_special_tokens=False))
        if twice - len(tokenizer.encode("a", add_special_tokens=False)) == 2 * TOKEN_BYTES:
            found.append(word)
    if len(found) < WORDS_MIN:
        raise PromptError(
            f"{tokenizer.name}: only {len(found)} known words are single tokens of it; English prompts cannot be made exact"
        )
    return found
