"""Let libFuzzer (atheris, ``pip install --group fuzz``) look for bytes that break a promise of ``tests.fuzz.targets``.

    python -m tests.fuzz.run [--seconds 60] [--only TARGET]

Each target runs in a process of its own, from its corpus on. What breaks it is written to ``tests/fuzz/corpus/TARGET/`` under a name of
its own, where the ordinary tests find it from then on; mend it, and give the file a name that says what it is.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.json_mutation import mutated

CORPUS = Path(__file__).parent / "corpus"
INPUT_BYTES_MAX = 4096
INPUT_S_MAX = 10  # an input that takes longer counts as one that breaks its target


def fuzz(target: str, corpus: Path, seconds: int) -> int:
    """Run one target in this process, which ends with it: libFuzzer never returns."""
    import atheris

    with atheris.instrument_imports(
        include=["proxy.wire", "proxy.config", "proxy.core.policy_tenants", "proxy.adapters.redis_reading"]
    ):
        from tests.fuzz.targets import TARGETS

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        made = mutated(data[1:], seed) if data[1:2] == b"{" and seed % 2 else None
        return data[:1] + made if made is not None and len(made) < size_max else atheris.Mutate(data, size_max)

    own = CORPUS / target
    options = [
        f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", f"-timeout={INPUT_S_MAX}", f"-artifact_prefix={own}/",
        "-print_final_stats=1", "-verbosity=0",
    ]  # fmt: skip
    atheris.Setup(
        [sys.argv[0], *options, str(corpus), str(own)], TARGETS[target], custom_mutator=mutate if target == "body" else None
    )
    atheris.Fuzz()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run all targets, or one; the exit code is 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", help="one target")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # a folder for what is learned: run in this process
    chosen = parser.parse_args(arguments)
    if chosen.here is not None:
        return fuzz(chosen.only, chosen.here, chosen.seconds)
    targets = [chosen.only] if chosen.only else sorted(one.name for one in CORPUS.iterdir() if one.is_dir())
    broken = []
    for target in targets:
        with tempfile.TemporaryDirectory() as learned:
            line = [sys.executable, "-m", "tests.fuzz.run", "--only", target, "--seconds", str(chosen.seconds), "--here", learned]
            broken += [target] * bool(subprocess.run(line, check=False).returncode)
    sys.stdout.write(f"fuzzed {', '.join(targets)} for {chosen.seconds} s each; broken: {', '.join(broken) or 'none'}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
