"""Prompts of plain conversations without running their template: what it writes around the contents, by the sequence of roles.

A template is a program, but of a plain conversation (``role`` and a string as ``content``, nothing else) all that it can know is the roles,
which are few, and what it asks of the contents. So it is run once for each sequence of roles, with contents that watch what is asked of
them: whether they begin or end with a text, hold one, are one, are empty, or would be stripped. These answers are the *conditions*. As
nothing else of a content was read, every conversation of these roles whose contents answer alike takes the same way through the template,
and its prompt is the same but for the contents. Any other goes through the template.

What cannot be watched rules a template out: its clock and dice; text that was put together from a content and is then looked at (only
adding to it and writing it are allowed); filters, tests and calls that are given a content, but for those named here; and of its syntax
what makes text of output (macros, blocks that capture) or asks whether a content is within another text.

Each sequence is proven once more: its first conversation is rendered both ways, and a difference ends it for good.

Bounds: ``ROLES_MAX`` messages, ``SHAPES_MAX`` sequences, after which all are forgotten.
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2

from proxy.adapters.chat_messages import BILLING_HEADER
from proxy.adapters.template_format import RENDER_ERRORS
from proxy.adapters.watched_text import Condition, Trace, UnwatchedError, Watched, WatchingEnvironment, is_watchable

ROLES_MAX = 32  # messages of a conversation; encoding more takes so long that the template's share is small
SHAPES_MAX = 256  # a few KB each
PLAIN_ROLES = frozenset({"system", "user", "assistant"})

_PLAIN_KEYS = {"role", "content"}
_MARK = "\ue000{}\ue001"
_MARKS = re.compile("\ue000(\\d+)\ue001")


class Shape(NamedTuple):
    """The prompt of one sequence of roles: ``texts[0]``, content ``order[0]``, ``texts[1]`` and so on, while each condition (index of the
    content, question, answer) holds.
    """

    texts: tuple[str, ...]
    order: tuple[int, ...]
    conditions: tuple[tuple[int, Condition, bool], ...]

    def written(self, contents: Sequence[str]) -> str | None:
        """The prompt; None where a content answers otherwise."""
        for index, question, answer in self.conditions:
            if question(contents[index]) is not answer:
                return None
        pieces = [self.texts[0]]
        for index, text in zip(self.order, self.texts[1:], strict=True):
            pieces += (contents[index], text)
        return "".join(pieces)


def plain_contents(messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[str]] | None:
    """Roles and contents of a plain conversation; None of any other."""
    if len(messages) > ROLES_MAX:
        return None
    roles, contents = [], []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if type(content) is not str or type(role) is not str or role not in PLAIN_ROLES or message.keys() != _PLAIN_KEYS:
            return None
        if role == "system" and content.startswith(BILLING_HEADER):
            return None  # the engine drops a line
        roles.append(role)
        contents.append(content)
    return tuple(roles), contents


class PlainChats:
    """Prompts of the plain conversations of one template, with the variables that the server gives it."""

    def __init__(self, source: str, like: jinja2.Environment, variables: Mapping[str, Any], *, wants_parts: bool) -> None:
        """``like`` is the environment that the template runs in, ``variables`` all that it is given beside the messages."""
        self._environment = WatchingEnvironment(
            trim_blocks=like.trim_blocks,
            lstrip_blocks=like.lstrip_blocks,
            extensions=[type(one) for one in like.extensions.values()],
        )
        self._environment.like(like)
        self._variables = dict(variables)
        self._wants_parts = wants_parts
        watchable = is_watchable(self._environment.parse(source))
        self._template = self._environment.from_string(source) if watchable else None  # None: nothing is known of it
        self._shapes: dict[tuple[str, ...], Shape | None] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """What is known, for people and tests."""
        return (
            f"<PlainChats usable={self._template is not None} shapes={sum(shape is not None for shape in self._shapes.values())}>"
        )

    def prompt(self, messages: Sequence[Mapping[str, Any]], render: Callable[[], str]) -> str:
        """The conversation's prompt, as ``render`` makes it, which is asked where it is not known better."""
        template = self._template
        plain = plain_contents(messages) if template is not None and messages else None
        if template is None or plain is None:
            return render()
        roles, contents = plain
        if roles not in self._shapes:
            return self._learned(template, roles, contents, render)
        shape = self._shapes.get(roles)
        written = None if shape is None else shape.written(contents)
        return render() if written is None else written

    def _learned(self, template: jinja2.Template, roles: tuple[str, ...], contents: list[str], render: Callable[[], str]) -> str:
        """What ``render`` makes of the first conversation of its roles, which shows whether others can be written as that was watched."""
        rendered = render()
        with self._lock:
            shape = self._shape(template, roles)
            if shape is not None and shape.written(contents) not in (None, rendered):
                self._template, shape = None, None
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            self._shapes[roles] = shape
        return rendered

    def _shape(self, template: jinja2.Template, roles: tuple[str, ...]) -> Shape | None:
        """What the template writes around contents of these roles; None where that cannot be told."""
        trace = self._environment.trace = Trace()
        watched = [Watched(_MARK.format(index), trace, index) for index in range(len(roles))]
        messages = [
            {"role": role, "content": [{"type": "text", "text": content}] if self._wants_parts else content}
            for role, content in zip(roles, watched, strict=True)
        ]
        try:
            text = template.render({**self._variables, "messages": messages})
        except (*RENDER_ERRORS, UnwatchedError):
            return None  # it refuses such a conversation: it is to say so itself
        if trace.lost:
            return None
        texts = _MARKS.split(text)
        conditions = ((index, question, answer) for (index, _, _), (question, answer) in trace.conditions.items())
        return Shape(tuple(texts[::2]), tuple(map(int, texts[1::2])), tuple(conditions))
