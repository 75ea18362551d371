"""The text of the project: sizes, docstrings, and words that do not belong in it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 500
TEST_LINES_MAX = 1000

LONG: dict[str, str] = {
    "shardsrv/wire/error_codes.py": "one table, written by tools/generate_error_codes.py",
    "tests/unit/test_bus_net.py": "every rule of the reactor against real sockets, on one set of fixtures",
}
"""Longer files and why each is one thing."""

BANNED = {
    r"/work/": "a path of one machine",
    r"\b(TODO|FIXME|XXX|HACK)\b": "work that was left",
    r"panicked at": "tools of the reference take this text for a crash",
    r"\bhelpers?'s\b|COMMON\.md|issues show": "how the project came about",
    r"#\s*type:\s*ignore(?!\[)": "an ignored type error that does not say which",
    r"(?m)^\s*except:": "an except that takes everything",
    r"# (was|previously|formerly|old|new|changed|now uses)\b": "a comment that tells a story of changes",
}
"""Pattern -> what it stands for."""


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository, or of the folder where there is none (an unpacked archive)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    if not names:
        names = [str(path.relative_to(ROOT)) for folder in ("shardsrv", "tests") for path in (ROOT / folder).rglob("*")]
    paths = [ROOT / name for name in sorted(names) if name.endswith(suffixes)]
    return [path for path in paths if path.is_file()]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


SOURCES = tracked(".py", ".pyx", ".pxd", ".pxi", ".pyi")


def test_the_files_are_found() -> None:
    assert len(SOURCES) > 50


def test_no_file_is_long_without_a_reason() -> None:
    lengths = {short(path): path.read_text().count("\n") for path in SOURCES}
    limit = {name: TEST_LINES_MAX if name.startswith("tests/") else LINES_MAX for name in lengths}
    long = {name: length for name, length in lengths.items() if length > limit[name]}
    assert {name: length for name, length in long.items() if name not in LONG} == {}
    assert set(LONG) <= set(long), "no longer long: take it off the list"


@pytest.mark.parametrize("path", tracked(".py", ".pyx", ".pxd"), ids=short)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".py":
        assert text.strip() == "" or ast.get_docstring(ast.parse(text)), "no docstring"
    else:
        code = [line for line in text.split("\n") if line.strip() and not line.startswith("#")]
        assert code[0].startswith(('"""', 'r"""')), "no docstring"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name != Path(__file__).name], ids=short)
def test_no_banned_words(path: Path) -> None:
    text = path.read_text()
    for pattern, meaning in BANNED.items():
        found = re.search(pattern, text)
        line = text[: found.start()].count("\n") + 1 if found else 0
        assert found is None, f"line {line}: {found[0] if found else ''!r} is {meaning}"


@pytest.mark.parametrize("text", ["x = 1  # TODO later", "y = a  # type: ignore", "try: ...\nexcept: ...", "# was 5"])
def test_a_banned_word_is_found(text: str) -> None:
    assert any(re.search(pattern, text) for pattern in BANNED)
