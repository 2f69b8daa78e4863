"""Prompts of plain conversations written without their template: the same as those of the template, whatever it asks of the contents."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.adapters.chat_messages import normalise_messages
from proxy.adapters.chat_template import ChatTemplate, ChatTemplateError
from proxy.adapters.plain_chats import ROLES_MAX, SHAPES_MAX
from proxy.adapters.watched_text import Trace, UnwatchedError, Watched

LOOP = "{% for m in messages %}[%s]{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"


def of_each(body: str) -> str:
    return LOOP.replace("%s", body)


# name: template, and whether a conversation of a user's "Hi" alone is written without it
TEMPLATES: dict[str, tuple[str, bool]] = {
    "plain": (of_each("{{ m.role + ':' + m.content + '\\n' }}"), True),
    "items": (of_each("{{ m['role'] }}={{ m['content'] }}"), True),
    "tilde in output": (of_each("{{ bos_token ~ m.role ~ m.content }}"), True),
    "trim": (of_each("{{ m.role }} {{ m.content | trim }}"), True),
    "strip": (of_each("{{ m.content.strip() + m.content.lstrip('\\n') }}"), True),
    "twice and backwards": ("{% for m in messages[::-1] %}{{ m.content }}{{ m.content }}{% endfor %}", True),
    "thinking": (
        of_each("{% if '</t>' in m.content %}{{ m.content.split('</t>')[-1].lstrip() }}{% else %}{{ m.content }}{% endif %}"),
        True,
    ),
    "tool answer": (
        of_each("{% if m.content.startswith('<r>') and m.content.endswith('</r>') %}T{% else %}U{% endif %}{{ m.content }}"),
        True,
    ),
    "empty": (of_each("{% if m.content %}{{ m.content }}{% else %}nothing{% endif %}"), True),
    "equal": (of_each("{% if m.content == 'Ho' or m.content != 'a' %}{{ m.content }}{% endif %}"), True),
    "none": (of_each("{% if m.content is not none and m.content is string %}{{ m.content }}{% endif %}"), True),
    "one of": (of_each("{% if m.content in ['Ho', 'a'] %}!{% endif %}{{ m.content }}"), True),
    "roles alternate": (
        ("{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content + eos_token }}{% endfor %}"),
        True,
    ),
    "last user": (
        ("{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
        "{% endfor %}{% for m in messages %}{{ m.content }}{% if loop.index0 == ns.last %}*{% endif %}{% endfor %}"),
        True,
    ),
    "system first": (
        ("{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set s = '' %}"
        "{% set rest = messages %}{% endif %}{% for m in rest %}{% if loop.first %}{{ s + m.content }}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}"),
        True,
    ),
    "length of the list": ("{{ messages | length }}{{ messages[0].content }}", True),
    "put together, then trimmed": (of_each("{% set c = '<' + m.content %}{{ c | trim }}"), False),
    "put together, then split": (of_each("{% set c = m.content + ' x' %}{{ c.split(' ')[0] }}"), False),
    "tilde, then trimmed": (of_each("{% set c = m.content ~ '' %}{{ c | trim }}"), False),
    "within a text": (of_each("{% if m.content in 'Hi there' %}!{% endif %}{{ m.content }}"), False),
    "length": (of_each("{{ m.content | length }}{{ m.content }}"), False),
    "json": (of_each("{{ m.content | tojson }}"), False),
    "json of the message": (of_each("{{ m | tojson }}"), False),
    "upper": (of_each("{{ m.content.upper() }}"), False),
    "upper filter": (of_each("{{ m.content | upper }}"), False),
    "replace": (of_each("{{ m.content.replace('a', 'b') }}"), False),
    "format": (of_each("{{ '%s!' | format(m.content) }}{{ '{}'.format(m.content) }}"), False),
    "format of it": (of_each("{{ m.content.format(1) }}"), False),
    "percent": (of_each("{{ '%s' % m.content }}"), False),
    "times": (of_each("{{ m.content * 2 }}"), False),
    "first letter": (of_each("{{ m.content[0] }}{{ m.content[1:] }}"), False),
    "letters": (of_each("{% for c in m.content %}{{ c }}.{% endfor %}"), False),
    "sequence": (of_each("{% if m.content is sequence %}{{ m.content }}{% endif %}"), False),
    "key": (of_each("{{ {'Hi': 1, 'a': 2}[m.content] }}{{ m.content }}"), False),
    "order": (of_each("{% if m.content < 'b' %}{{ m.content }}{% endif %}"), False),
    "joined": ("{{ messages | map(attribute='content') | join('|') }}", False),
    "macro": ("{% macro w(c) %}{{ c }}{% endmacro %}{% for m in messages %}{{ w(m.content) | trim }}{% endfor %}", False),
    "captured": ("{% for m in messages %}{% set c %}{{ m.content }}{% endset %}{{ c | trim }}{% endfor %}", False),
    "filtered block": ("{% for m in messages %}{% filter upper %}{{ m.content }}{% endfilter %}{% endfor %}", False),
    "the day": ("{{ strftime_now('%S') }}{% for m in messages %}{{ m.content }}{% endfor %}", False),
    "dice": ("{{ [1, 2] | random }}{% for m in messages %}{{ m.content }}{% endfor %}", False),
    "changed": ("{% for m in messages %}{% if loop.changed(m.content) %}{{ m.content }}{% endif %}{% endfor %}", False),
    "refuses": ("{{ raise_exception('never') }}", False),
    "parts": (
        ("{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
        "{% endfor %}"),
        True,
    ),
}  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(
        ("", "a", "Hi", "<r>", "</r>", "<r>x</r>", "x</t>y", " lead", "trail\n", "\n", "{{ 1 }}", "Hi there", "\ue0000\ue001")
    ),
    st.text(max_size=6),
)
MESSAGES = st.lists(st.tuples(st.sampled_from(("system", "user", "assistant")), TEXTS), min_size=1, max_size=4)
Messages = tuple[dict[str, str], ...]


def conversation(*turns: tuple[str, str]) -> Messages:
    return tuple({"role": role, "content": content} for role, content in turns)


class Subject:
    """One template, and how often it was run."""

    def __init__(self, source: str) -> None:
        self.runs = 0
        seconds = itertools.count()
        self.template = ChatTemplate(
            source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, wall_s=lambda: next(seconds)
        )
        self.plain = self.template.plain_chats({})

    def run(self, messages: Messages) -> str:
        self.runs += 1
        return self.template.render(
            normalise_messages(messages, wants_parts=self.template.wants_parts), tools=None, documents=None, kwargs={},
            add_generation_prompt=True, continue_final_message=False,
        )  # fmt: skip

    def prompt(self, messages: Messages) -> str:
        return self.plain.prompt(messages, lambda: self.run(messages))

    def writes(self, messages: Messages) -> bool:
        """Whether it writes them without the template, once it has seen their like."""
        self.prompt(messages)
        before = self.runs
        self.prompt(messages)
        return self.runs == before


def outcome(make: Callable[[Messages], str], messages: Messages) -> str:
    try:
        return "said " + make(messages)
    except ChatTemplateError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("the day", "dice")])
@given(conversations=st.lists(MESSAGES, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_prompt_is_what_the_template_makes_of_it(name: str, conversations: list[list[tuple[str, str]]]) -> None:
    subject = Subject(TEMPLATES[name][0])
    for turns in conversations:
        messages = conversation(*turns)
        for _ in range(2):
            assert outcome(subject.prompt, messages) == outcome(subject.run, messages)


@pytest.mark.parametrize(("source", "writes"), TEMPLATES.values(), ids=list(TEMPLATES))
def test_what_can_be_watched_is_written_without_the_template(source: str, writes: bool) -> None:
    subject = Subject(source)
    try:
        assert subject.writes(conversation(("user", "Hi"))) == writes
    except ChatTemplateError:
        assert not writes


@pytest.mark.parametrize(
    "messages",
    [
        ({"role": "user", "content": "Hi", "name": "a"},),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]},),
        ({"role": "assistant", "content": None},),
        ({"role": "assistant", "content": "Hi", "tool_calls": []},),
        ({"role": "tool", "content": "Hi"},),
        ({"role": "developer", "content": "Hi"},),
        ({"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, {"role": "user", "content": "Hi"}),
        ({"role": "user", "content": "Hi"},) * (ROLES_MAX + 1),
    ],
)
def test_other_conversations_go_through_the_template(messages: Messages) -> None:
    subject = Subject(TEMPLATES["none"][0])
    assert not subject.writes(messages)


def test_a_difference_ends_it() -> None:
    subject = Subject(TEMPLATES["plain"][0])
    messages = conversation(("user", "Hi"))
    assert subject.plain.prompt(messages, lambda: "something else") == "something else"
    assert "usable=False" in repr(subject.plain)
    assert not subject.writes(messages)


def test_no_more_sequences_are_kept_than_allowed() -> None:
    subject = Subject(TEMPLATES["plain"][0])
    for roles in itertools.islice(itertools.product(("user", "assistant"), repeat=9), SHAPES_MAX):
        subject.prompt(conversation(*((role, "a") for role in roles)))
    assert repr(subject.plain) == f"<PlainChats usable=True shapes={SHAPES_MAX}>"
    subject.prompt(conversation(("user", "a")))
    assert repr(subject.plain) == "<PlainChats usable=True shapes=1>"


@pytest.mark.parametrize(
    "name", sorted(set(dir(str)) - set(dir(object)) | {"__rmod__", "__rmul__", "__hash__", "__format__", "__lt__"})
)
def test_every_method_of_a_text_is_watched(name: str) -> None:
    asked = {"__add__", "__contains__", "startswith", "endswith", "strip", "lstrip", "rstrip"}
    trace = Trace()
    method = getattr(Watched("text", trace, 0), name)
    if name in asked:
        method(*(() if "strip" in name else ("t",)))
        assert trace.conditions or name == "__add__"
        assert not trace.lost
        return
    with pytest.raises(UnwatchedError):
        method()
    assert trace.lost
