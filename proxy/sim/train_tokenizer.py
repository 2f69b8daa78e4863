"""Trains the mock's tokenizer: a byte-level BPE of about four thousand tokens, from text this script writes itself.

    python -m proxy.sim.train_tokenizer [DIRECTORY]

Seeded, so it writes the same files each time: ``tokenizer.json`` and ``tokenizer_config.json`` with a ChatML-like chat template that
knows tools, tool results, documents and ``add_generation_prompt``. Nothing is downloaded.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 4096
SENTENCES = 60_000
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
DIRECTORY = Path(__file__).with_name("tokenizer")


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words("""\
time year people way day man thing woman life child world school state family student group country problem hand part place
case week company system program question work government number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father power hour game line end member law car city
community name president team minute idea body information back parent face level office door health person art war history party
result change morning reason research girl guy moment air teacher force education foot boy age policy process music market sense
nation plan college interest death experience effect use class control care field development role effort rate heart drug show leader
light voice wife police mind price report decision son view relationship town road arm difference value building action season society
tax director position player record paper space ground form event official matter center couple site project activity star table need
court oil situation cost industry figure street image phone data picture practice piece land product doctor wall patient worker news
test movie north love support technology engine queue cache memory token block server client request answer prompt model batch step
latency throughput budget limit window replica proxy gateway cluster node network socket stream buffer header body page thread lock
clock counter gauge metric histogram trace graph tree list array string byte file folder disk kernel driver device sensor signal
river mountain forest garden bread butter cheese apple orange lemon coffee sugar salt pepper kitchen window chair carpet curtain
bridge train station ticket journey island harbour sailor captain anchor storm cloud rain snow summer winter autumn spring""")
VERBS = _words("""\
be have do say get make go know take see come think look want give use find tell ask work seem feel try leave call need
become put mean keep let begin help talk turn start show hear play run move like live believe hold bring happen write provide sit
stand lose pay meet include continue set learn change lead understand watch follow stop create speak read allow add spend grow open
walk win offer remember love consider appear buy wait serve die send expect build stay fall cut reach kill remain suggest raise pass
sell require report decide pull return explain hope develop carry break receive agree support hit produce eat cover catch draw choose
cause point listen realize place close involve increase measure predict schedule admit preempt evict allocate release refuse retry
route balance count estimate forecast compute store fetch flush parse encode decode compile deploy restart drain scale""")
ADJECTIVES = _words("""\
good new first last long great little own other old right big high different small large next early young important
few public bad same able political late general full far low common poor natural significant similar hot dead central happy serious
ready simple left physical single strong whole free real best better true federal international special clear recent certain personal
open red difficult available likely short medical current wrong private past foreign fine dark quiet bright heavy gentle narrow
careful honest patient quick slow steady fair empty warm cold wide deep local remote shared stale fresh exact rough""")
GLUE = _words("""\
the of and to in a is that for it was on with as are at by this from or an which one would all will there been if more when
who so no out up into than them can only other some could these two may then do first any my now such like our over me even most made
after also did many off before must well back through where much your way down should because each just those how too very still""")
NAMES = _words(
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Lukas Maria Nina Oscar Paula Robert Sofia Thomas Vera"
)
TYPES = _words("str int float bool bytes list dict tuple None object")

CHAT_TEMPLATE = """\
{%- set system = messages[0]['content'] if messages and messages[0]['role'] == 'system' else '' -%}
{%- if system or tools or documents -%}
{{ '<|im_start|>system\\n' + system }}
{%- if tools -%}
{{ '\\n\\n# Tools\\n\\nCall a function by answering with a JSON object inside <tool_call></tool_call>.\\n<tools>' }}
{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
{{ '\\n</tools>' }}
{%- endif -%}
{%- if documents -%}
{{ '\\n\\n# Documents\\n' }}
{%- for document in documents -%}
{{ '\\n## ' + (document['title'] or 'Document ' + loop.index | string) + '\\n' + (document['text'] or '') + '\\n' }}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + (message['content'] or '') + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (loop.first and message['role'] == 'system') -%}
{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
{%- for call in message['tool_calls'] or [] -%}
{{ '\\n<tool_call>\\n' + (call['function'] | tojson) + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def write_text(seed: int = 7) -> Iterator[str]:
    """Training lines: sentences, code and JSON, the common words more often than the rare ones."""
    rng = random.Random(seed)
    for index in range(SENTENCES):
        if index % 10 == 8:
            yield _code(rng)
        elif index % 10 == 9:
            yield _json(rng)
        else:
            yield _sentence(rng)


def _inflected_verb(rng: random.Random) -> str:
    verb = rng.choice(VERBS)
    stem = verb.removesuffix("e")
    return rng.choice((verb, verb, verb + "s", stem + "ing", stem + "ed", stem + "er"))


def _inflected_adjective(rng: random.Random) -> str:
    adjective = rng.choice(ADJECTIVES)
    return rng.choice((adjective, adjective, adjective + "ly", "un" + adjective, adjective + "ness"))


def _noun(rng: random.Random) -> str:
    noun = rng.choice(NOUNS)
    return rng.choice((noun, noun, noun + "s"))


def _sentence(rng: random.Random) -> str:
    words = []
    for _ in range(rng.randrange(5, 22)):
        kind = rng.random()
        if kind < 0.42:
            words.append(GLUE[int(len(GLUE) * rng.random() ** 2)])
        elif kind < 0.68:
            words.append(_noun(rng))
        elif kind < 0.84:
            words.append(_inflected_verb(rng))
        elif kind < 0.95:
            words.append(_inflected_adjective(rng))
        elif kind < 0.98:
            words.append(rng.choice(NAMES))
        else:
            words.append(str(int(rng.lognormvariate(4, 2))))
        if rng.random() < 0.07:
            words[-1] += rng.choice((",", ",", ";", ":", "'s"))
    text = " ".join(words)
    return text[0].upper() + text[1:] + rng.choice(".....?!")


def _code(rng: random.Random) -> str:
    name, argument, attribute = _inflected_verb(rng), rng.choice(NOUNS), rng.choice(NOUNS)
    return (
        f"def {name}_{argument}(self, {argument}: {rng.choice(TYPES)}, {attribute}: {rng.choice(TYPES)} = None) -> {rng.choice(TYPES)}:\n"
        f'    """{_sentence(rng)}"""\n'
        f"    for {argument} in self.{attribute}s:\n        if {argument} is not None and {attribute} >= {rng.randrange(100)}:\n"
        f'            return self._{name}({argument}, {attribute})\n    raise ValueError(f"{_noun(rng)}: {{{argument}}}")\n'
    )


def _json(rng: random.Random) -> str:
    record = {rng.choice(NOUNS): rng.choice((rng.randrange(1000), rng.random() < 0.5, _noun(rng), None)) for _ in range(4)}
    parameters = {"type": "object", "properties": {rng.choice(NOUNS): {"type": "string", "description": _sentence(rng)}}}
    function = {"name": f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}", "parameters": parameters, "arguments": record}
    return json.dumps({"type": "function", "function": function, "role": rng.choice(("user", "assistant", "system", "tool"))})


def train() -> Tokenizer:
    """The tokenizer, in memory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(write_text(), trainer)
    return tokenizer


def configuration() -> dict[str, object]:
    """``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": CHAT_TEMPLATE,
    }


def main(arguments: list[str]) -> int:
    """Write both files into the directory given, or over the shipped ones."""
    directory = Path(arguments[0]) if arguments else DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    train().save(str(directory / "tokenizer.json"), pretty=False)
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
