"""What the mock's model reads and says: the shipped tokenizer, its chat template, and outputs that depend only on seed and prompt.

Length: ``max(1, round(exp(N(ln median, sigma))))`` tokens, the end token counted, drawn from the seed, the prompt's tokens and the
choice's index, so equal prompts get equal answers. Text: a fixed shuffled cycle of words and punctuation, entered at a place that
depends on the same hash. Every token of it encodes back to itself, so an answer sent again in the next turn hits the prefix cache.
Fails: the text makes no sense, calls no tools and obeys no format.
"""

import json
import math
import random
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from proxy.sim.mock_messages import UnreadableMessageError, template_messages, template_tools, template_variables

TOKENIZER_DIRECTORY = Path(__file__).with_name("tokenizer")
CYCLE_TOKENS = 8191
END_OF_TURN = "<|im_end|>"


class TemplateFailedError(Exception):
    """The chat template could not render these messages; the message is for the client."""


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)


class MockTokenizer:
    """Prompts to token ids and back, as the served model would."""

    def __init__(self, directory: Path = TOKENIZER_DIRECTORY) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals["raise_exception"] = _raise_template_error
        self._template = environment.from_string(config["chat_template"])
        self.vocabulary_size: int = self._tokenizer.get_vocab_size()
        self.end_token_id: int = self._tokenizer.get_vocab()[END_OF_TURN]
        self.characters_per_token_max = max(len(token) for token in self._tokenizer.get_vocab())

    def encode(self, text: str) -> list[int]:
        """Token ids. The tokenizer adds no begin token, so ``add_special_tokens`` makes no difference."""
        ids: list[int] = self._tokenizer.encode_batch_fast([text])[0].ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids. Ids outside the vocabulary have none."""
        known = [token for token in ids if 0 <= token < self.vocabulary_size]
        text: str = self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def token_strings(self, ids: list[int]) -> list[str]:
        """The vocabulary's own spelling of each id."""
        return [self._tokenizer.id_to_token(token) or "" for token in ids]

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The chat prompt's text. ``variables``: tools, documents, add_generation_prompt and the request's template arguments."""
        given = template_variables(variables)
        try:
            if "tools" in given:
                given["tools"] = template_tools(given["tools"])
            return self._template.render(messages=template_messages(messages), **given)
        except (TemplateError, TypeError, UnreadableMessageError) as error:
            raise TemplateFailedError(str(error)) from error

    def words(self) -> list[tuple[int, str]]:
        """Ids and texts of plain words, each with its leading space, that encode back to the same id."""
        found = []
        for token, index in sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1]):
            word = token.removeprefix("Ġ")
            if word != token and len(word) > 1 and word.isascii() and word.isalpha() and word.islower():
                found.append((index, " " + word))
        encoded = self._tokenizer.encode_batch_fast([text for _, text in found])
        return [pair for pair, encoding in zip(found, encoded, strict=True) if encoding.ids == [pair[0]]]


class MockVoice:
    """Where outputs come from."""

    def __init__(self, tokenizer: MockTokenizer, *, seed: int, output_median: float, output_sigma: float) -> None:
        rng = random.Random(seed)
        self._seed = seed
        self._mu = math.log(output_median)
        self._sigma = output_sigma
        words = tokenizer.words()
        pauses = [(tokenizer.encode(text)[0], text) for text in (",", ".")]
        cycle: list[tuple[int, str]] = []
        while len(cycle) < CYCLE_TOKENS:
            cycle += [rng.choice(words) for _ in range(rng.randrange(4, 13))]
            cycle.append(rng.choice(pauses))
        self._ids = [token for token, _ in cycle[:CYCLE_TOKENS]]
        self.pieces = [text for _, text in cycle[:CYCLE_TOKENS]]

    def fingerprint(self, prompt: list[int], choice: int) -> int:
        """What an output depends on. Integers hash alike in every process."""
        return hash((self._seed, choice, *prompt)) & 0x7FFFFFFFFFFFFFFF

    def length(self, fingerprint: int) -> int:
        """Natural output tokens, end token included."""
        return max(1, round(random.Random(fingerprint).lognormvariate(self._mu, self._sigma)))

    def entry(self, fingerprint: int) -> int:
        """Index into ``pieces`` of the first output token; the text goes round the cycle from there."""
        return fingerprint % CYCLE_TOKENS

    def token_id(self, entry: int, position: int) -> int:
        """Id of the output token at ``position``."""
        return self._ids[(entry + position) % CYCLE_TOKENS]

    def text(self, entry: int, tokens: int) -> str:
        """Text of the first ``tokens`` output tokens."""
        return "".join(self.pieces[(entry + position) % CYCLE_TOKENS] for position in range(tokens))
