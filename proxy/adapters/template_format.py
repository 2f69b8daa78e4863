"""What a chat template wants its messages like, by the engine's own rules.

Does it loop over content parts? Read from its syntax tree (vLLM renderers/hf.py). Yes ("openai"): parts reach the template as objects.
No ("string"): parts are joined by line breaks before. The rule follows assignments from ``messages`` without scopes, so it can misjudge
an unusual template exactly as the engine misjudges it. Does it want the system message first? Tried (vLLM anthropic/serving.py).
"""

from collections import deque
from collections.abc import Iterator

from jinja2 import TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# What a template written by others can raise on messages sent by others: lookups on missing or odd values, arithmetic on text,
# str methods with wrong arguments, recursion, ranges beyond the sandbox's limit (OverflowError), json.dumps of an Undefined.
RENDER_ERRORS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, AssertionError,
)  # fmt: skip


def loops_over_content(tree: nodes.Template) -> bool:
    """True for content format "openai", False for "string"."""
    try:
        return next(_content_loops(tree), None) is not None
    except _UnusualTargetError:
        return False  # the engine logs the failed assertion and falls back to "string"


def refuses_late_system(source: str) -> bool:
    """Whether a system message after a user's makes the template fail. It is tried as bare as the engine tries it, without globals."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    messages = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        environment.from_string(source).render(messages=messages, add_generation_prompt=False)
    except TemplateError:
        return True
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return True  # the engine would not have started with it
    return False


class _UnusualTargetError(Exception):
    """A loop or assignment unpacks several names where the rule expects one."""


def _is_variable(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _is_attribute(node: nodes.Node, name: str, key: str) -> bool:
    if isinstance(node, nodes.Getitem):
        return _is_variable(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    if isinstance(node, nodes.Getattr):
        return _is_variable(node.node, name) and node.attr == key
    return False


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether ``node`` is the variable (or its ``key``), maybe filtered, tested or sliced."""
    if node is None:
        return False
    if isinstance(node, (nodes.Filter, nodes.Test)) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        return _reads(node.node, name, key)
    return _is_attribute(node, name, key) if key else _is_variable(node, name)


def _target_name(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _UnusualTargetError
    return node.name


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """``name`` and every variable assigned from it or from one of its aliases."""
    yield name
    related = deque([name])
    while related:
        current = related.popleft()
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, current):
                alias = _target_name(assign.target)
                yield alias
                if alias != current:
                    related.append(alias)


def _message_names(tree: nodes.Template) -> list[str]:
    aliases = list(_aliases(tree, "messages"))
    return [_target_name(loop.target) for loop in tree.find_all(nodes.For) if any(_reads(loop.iter, alias) for alias in aliases)]


def _macro_parameters(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    """Parameters of ``macro`` that some call fills with a message's content."""
    names = {arg.name for arg in macro.args}
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        for parameter, value in zip(macro.args, call.args, strict=False):
            if any(_reads(value, message, "content") for message in messages):
                found.add(parameter.name)
        for keyword in call.kwargs:
            if (
                isinstance(keyword, nodes.Keyword)
                and keyword.key in names
                and any(_reads(keyword.value, message, "content") for message in messages)
            ):
                found.add(keyword.key)
    return found


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _message_names(tree)
    parameters_of_loop: dict[int, set[str]] = {}
    loops_in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        parameters = _macro_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            loops_in_macros.add(id(loop))
            if parameters:
                parameters_of_loop[id(loop)] = parameters
    for loop in tree.find_all(nodes.For):
        source = loop.iter
        named = source.name if isinstance(source, nodes.Name) else None
        if (
            any(_reads(source, message, "content") for message in messages)
            or (named is not None and named in parameters_of_loop.get(id(loop), set()))
            or (named == "content" and id(loop) not in loops_in_macros)
        ):
            _target_name(loop.target)
            yield loop
