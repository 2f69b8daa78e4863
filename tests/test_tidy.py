"""House rules that a machine can hold: small pieces, telling file names, no fault swallowed, no test skipped.

The limits may be tightened, never loosened.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("proxy", "tests", "deploy") for path in (ROOT / folder).rglob("*.py"))
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 300
GATE, GATE_LINES_MAX = "proxy/core/gate.py", 350  # the state machine stands in one piece
# A word that says "something to do with it" hides what a file holds.
EMPTY_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "base", "handler", "handlers", "misc"}
BROAD = {"Exception", "BaseException"}
# The one guarded place: a fault inside kvgate must not fail a request that plain forwarding would have served.
GUARD = "proxy/serving/guard.py"
SKIPS = {"skip", "skipif", "importorskip", "xfail", "SkipTest", "skipTest", "skipUnless"}
# The one allowed skip: recorded workloads that the repository does not hold.
TEST_DATA = "KVGATE_TEST_DATA"


Rule = Callable[[ast.Module, str], Iterator[str]]


def long_functions(tree: ast.Module, _: str) -> Iterator[str]:
    """Yield functions over the limit, decorators not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines; at most {FUNCTION_LINES_MAX}"


def modules_over(limit: int) -> Rule:
    """Return the rule that a module has at most ``limit`` lines."""

    def long_modules(_: ast.Module, source: str) -> Iterator[str]:
        lines = source.count("\n")
        if lines > limit:
            yield f"1: {lines} lines; at most {limit}"

    return long_modules


def names_in(node: ast.expr | None) -> Iterator[str]:
    """Yield every plain or dotted name's last word."""
    for part in ast.walk(node) if node else ():
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def broad_catches(tree: ast.Module, _: str) -> Iterator[str]:
    """Yield what would swallow any fault: ``suppress`` of everything, and a bare or broad ``except`` that does not end in ``raise``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or BROAD & set(names_in(node.type))):
            if not isinstance(node.body[-1], ast.Raise):
                yield f"{node.lineno}: a broad except that swallows; only {GUARD} may have one"
        elif (
            isinstance(node, ast.Call)
            and "suppress" in set(names_in(node.func))
            and BROAD & {n for a in node.args for n in names_in(a)}
        ):
            yield f"{node.lineno}: a broad suppress"


def skipped_tests(tree: ast.Module, source: str) -> Iterator[str]:
    """Yield skips in a module that does not ask for recorded data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in SKIPS and TEST_DATA not in source:
            yield f"{node.lineno}: .{node.attr}; a real part that is missing is a failure"


def breaches(rule: Rule, paths: list[Path]) -> list[str]:
    """Return every breach of a rule as ``file:line: what``."""
    found = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}:{breach}" for breach in rule(ast.parse(source), source)]
    return found


def test_functions_and_modules_are_small() -> None:
    assert breaches(long_functions, SOURCES) == []
    assert breaches(modules_over(MODULE_LINES_MAX), [path for path in SOURCES if path != ROOT / GATE]) == []
    assert breaches(modules_over(GATE_LINES_MAX), [ROOT / GATE]) == []


def test_faults_are_caught_by_name() -> None:
    assert breaches(broad_catches, [path for path in SOURCES if path != ROOT / GUARD]) == []


def test_no_test_is_skipped_for_a_missing_part() -> None:
    assert breaches(skipped_tests, [path for path in SOURCES if path.is_relative_to(ROOT / "tests")]) == []


def test_file_names_say_what_is_in_the_file() -> None:
    assert [str(path) for path in SOURCES if EMPTY_WORDS & set(re.split(r"_", path.stem))] == []


def test_every_module_says_what_it_does() -> None:
    """An empty ``__init__`` of a test folder has nothing to say."""
    assert [
        str(path) for path in SOURCES if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ] == []


@pytest.mark.parametrize(
    ("rule", "source", "count"),
    [
        (long_functions, "def f():\n" + "    x = 1\n" * 69, 0),
        (long_functions, "async def f():\n" + "    x = 1\n" * 70, 1),
        (modules_over(300), "x = 1\n" * 300, 0),
        (modules_over(300), "x = 1\n" * 301, 1),
        (broad_catches, "try:\n    f()\nexcept ValueError:\n    pass\n", 0),
        (broad_catches, "try:\n    f()\nexcept (OSError, Exception):\n    pass\n", 1),
        (broad_catches, "try:\n    f()\nexcept builtins.BaseException:\n    pass\n", 1),
        (broad_catches, "try:\n    f()\nexcept:\n    pass\n", 1),
        (broad_catches, "try:\n    f()\nexcept BaseException:\n    close()\n    raise\n", 0),
        (broad_catches, "try:\n    f()\nexcept Exception:\n    if x:\n        raise\n", 1),
        (broad_catches, "with contextlib.suppress(Exception):\n    f()\n", 1),
        (broad_catches, "with contextlib.suppress(OSError):\n    f()\n", 0),
        (skipped_tests, "@pytest.mark.skipif(True)\ndef test_f(): ...\n", 1),
        (skipped_tests, "pytest.importorskip('redis')\n", 1),
        (skipped_tests, "DATA = 'KVGATE_TEST_DATA'\npytest.skip('set it')\n", 0),
    ],
)
def test_the_rules_themselves_can_fail(rule: Rule, source: str, count: int) -> None:
    assert len(list(rule(ast.parse(source), source))) == count
