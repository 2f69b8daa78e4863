"""Running a template on texts that watch what is asked of them (for ``adapters.plain_chats``).

A ``Watched`` text may be written, be added to other text, and be asked what has yes or no for an answer; each answer is a *condition*. What
else is done with one loses the trace: jinja calls filters, tests, functions and attributes through the environment, which looks at what
they are given, and what Python does with a text goes through its methods, all of which are replaced. Two ways remain out of sight, for
which a template's syntax is searched (``is_watchable``): text that is made of output or by ``~``, and a content sought in another text.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.nodes
import jinja2.sandbox

_ASKED = frozenset({"startswith", "endswith", "strip", "lstrip", "rstrip"})  # methods whose answers are conditions
_KINDS = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "number", "integer", "float", "boolean"}
)  # same for any text
_OF_LISTS = frozenset({"length", "count", "list", "first", "last"})  # filters that look at no element
_GLOBALS = frozenset({"range", "dict", "namespace", "raise_exception"})
_CAPTURES = (jinja2.nodes.Macro, jinja2.nodes.CallBlock, jinja2.nodes.FilterBlock, jinja2.nodes.AssignBlock)
Condition = Callable[[str], bool]


class UnwatchedError(Exception):
    """The template did something with a content that cannot be told from outside."""


class Trace:
    """What one run asked. ``lost`` says that something could not be watched; templates may swallow the error."""

    def __init__(self) -> None:
        self.conditions: dict[tuple[int, str, tuple[str, ...]], tuple[Condition, bool]] = {}
        self.lost = False

    def lose(self) -> NoReturn:
        """Something went out of sight."""
        self.lost = True
        raise UnwatchedError


class Watched(str):  # noqa: PLW1641  # hashing loses the trace: below
    """A content, or text made of some and more (``number`` None), that watches what is asked of it."""

    __slots__ = ("number", "trace")

    number: int | None
    trace: Trace

    def __new__(cls, text: str, trace: Trace, number: int | None = None) -> "Watched":
        made = super().__new__(cls, text)
        made.trace, made.number = trace, number
        return made

    def _ask(self, name: str, args: tuple[Any, ...], question: Condition) -> bool:
        if self.number is None or any(type(arg) is not str and arg is not None for arg in args):
            self.trace.lose()
        answer = question(str.__str__(self))
        self.trace.conditions[self.number, name, args] = question, answer
        return answer

    def __add__(self, other: str) -> str:
        return Watched(str.__add__(self, other), self.trace)

    def __radd__(self, other: str) -> str:
        return Watched(str.__add__(other, self), self.trace)

    def __str__(self) -> str:
        return self  # as written

    def __bool__(self) -> bool:
        return self._ask("bool", (), bool)

    def __contains__(self, text: Any) -> bool:
        return self._ask("contains", (text,), lambda content: text in content)

    def __eq__(self, other: object) -> bool:
        return self._ask("eq", (other,), lambda content: content == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def startswith(self, *args: Any) -> bool:
        return self._ask("startswith", args, lambda content: content.startswith(*args))

    def endswith(self, *args: Any) -> bool:
        return self._ask("endswith", args, lambda content: content.endswith(*args))

    def _stripped(self, name: str, args: tuple[Any, ...]) -> str:
        """Itself, on condition that there is nothing to strip."""
        if not self._ask(name, args, lambda content: getattr(content, name)(*args) == content):
            self.trace.lose()
        return self

    def strip(self, *args: Any) -> str:
        return self._stripped("strip", args)

    def lstrip(self, *args: Any) -> str:
        return self._stripped("lstrip", args)

    def rstrip(self, *args: Any) -> str:
        return self._stripped("rstrip", args)


def _lose(self: Watched, *_: Any, **__: Any) -> NoReturn:
    self.trace.lose()


for _name in {*dir(str), "__rmod__", "__rmul__"} - set(dir(object)) - set(vars(Watched)):
    setattr(Watched, _name, _lose)
for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__format__", "__hash__"):
    setattr(Watched, _name, _lose)


def _trace_of(values: Iterable[Any]) -> Trace | None:
    """Of the first content among these, or within them."""
    for value in values:
        if isinstance(value, Watched):
            return value.trace
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        if (found := _trace_of(inner)) is not None:
            return found
    return None


class WatchingEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Runs a template as another environment does, and loses the trace where a content goes out of sight."""

    trace: Trace

    def like(self, other: jinja2.Environment) -> None:
        """Filters, tests and globals are as there, but for what they do with contents."""
        self.trace = Trace()
        self.filters = {name: self._filter(name, one) for name, one in other.filters.items()}
        self.tests = {name: one if name in _KINDS else self._blind(one) for name, one in other.tests.items()}
        self.globals = {name: one if name in _GLOBALS else self._lost for name, one in other.globals.items()}

    def _lost(self, *_: Any, **__: Any) -> NoReturn:
        self.trace.lose()

    def _blind(self, plain: Any) -> Callable[..., Any]:
        """``plain``, unless it is given a content. What decides by the context (``pass_context``) stays so."""

        def blind(*args: Any, **kwargs: Any) -> Any:
            if _trace_of((*args, *kwargs.values())) is not None:
                self.trace.lose()
            return plain(*args, **kwargs)

        blind.__dict__.update(getattr(plain, "__dict__", {}))
        return blind

    def _filter(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        if name == "random":
            return self._lost
        blind = self._blind(plain)
        if name == "trim":
            return lambda value, *args: value.strip(*args) if isinstance(value, Watched) else blind(value, *args)
        if name in _OF_LISTS and not getattr(plain, "__dict__", {}):
            return lambda value, *args: plain(value, *args) if isinstance(value, list | tuple) else blind(value, *args)
        return blind

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Watched) and attribute not in _ASKED:
            self.trace.lose()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Watched):
            self.trace.lose()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as jinja2 declares it
        if _trace_of((*args, *kwargs.values())) is not None:
            __self.trace.lose()
        return super().call(__context, __obj, *args, **kwargs)


def is_watchable(tree: jinja2.nodes.Template) -> bool:
    """Whether no text made of a content gets out of sight by the template's syntax alone."""
    if next(tree.find_all(_CAPTURES), None) is not None:
        return False
    written: set[int] = set()
    for output in tree.find_all(jinja2.nodes.Output):
        _add_written(output.nodes, written)
    if any(id(node) not in written for node in tree.find_all(jinja2.nodes.Concat)):
        return False  # ~ makes plain text
    for compare in tree.find_all(jinja2.nodes.Compare):
        left: jinja2.nodes.Node = compare.expr
        for operand in compare.ops:
            within = operand.op in ("in", "notin")
            if (
                within
                and not isinstance(left, jinja2.nodes.Const)
                and not isinstance(operand.expr, jinja2.nodes.List | jinja2.nodes.Tuple)
            ):
                return False
            left = operand.expr
    return True


def _add_written(parts: Iterable[jinja2.nodes.Node], written: set[int]) -> None:
    """Those of the parts of an output that are put together by ``+`` and ``~`` alone."""
    for part in parts:
        if isinstance(part, jinja2.nodes.Concat):
            written.add(id(part))
            _add_written(part.nodes, written)
        elif isinstance(part, jinja2.nodes.Add):
            _add_written((part.left, part.right), written)
