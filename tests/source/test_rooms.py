"""Rooms and their doors: imports point one way, what decides is pure. Read from the syntax, nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "shardsrv"

SETTINGS = ("errors", "quantities", "roster", "config", "config_schema", "config_sources", "root_user", "advice")
PURE = ("wire", "vsr", "plane")
TEST_ROOMS = ("sim",)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "_core": (),
    "errors": ("wire.error_codes",),
    "quantities": (),
    "config_sources": ("errors",),
    "config_schema": ("errors", "quantities", "roster"),
    "roster": (),
    "root_user": ("errors", "config_sources"),
    "config": SETTINGS,
    "advice": ("errors",),
    "logs": SETTINGS,
    "wire": ("errors", "_core", "wire"),
    "vsr": ("errors", "_core", "wire", "vsr"),
    "plane": ("errors", "_core", "wire", "vsr", "plane"),
    "store": ("errors", "_core", "wire", "vsr.state", "store"),
    "bus": ("errors", "_core", "wire", "vsr.state", "bus"),
    "http": ("errors", "_core", "wire", "http"),
    "shards": (*SETTINGS, "logs", "_core", "wire", "vsr", "plane", "store", "bus", "http", "shards"),
    "cli": (*SETTINGS, "logs", "store", "shards"),
    "__main__": ("cli",),
    # The drivers of groups and transfers carry effects out; the simulator runs the server's own.
    "sim": (
        *("errors", "_core", "wire", "vsr", "plane", "store", "sim", "shards.group", "shards.records"),
        *("shards.member_facts", "shards.metadata_aside", "shards.metadata_transfer"),
        *("shards.partition_transfer", "shards.transfer_driver"),
    ),
}
"""Room or top-level module -> what it may import; ``vsr.state`` is that module alone."""

IMPURE = ("trio", "os", "socket", "time", "random", "threading", "mmap", "logging", "asyncio", "subprocess", "secrets")


def room_of(module: str) -> str:
    """``shardsrv.vsr.state`` lies in the room ``vsr``."""
    return module.removeprefix("shardsrv.").split(".")[0]


def sources(*suffixes: str) -> list[Path]:
    return sorted(path for suffix in suffixes for path in PRODUCT.rglob(f"*{suffix}"))


def name_of(path: Path) -> str:
    """The module of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST, module: str, package: bool) -> Iterator[tuple[str, int]]:
    """(absolute name, line) of every import, also below functions; a name from a package may be a module of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if package else module.split(".")[:-1]
                base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def allowed(importer: str, imported: str) -> bool:
    """Whether a module of the product may import a name of the product."""
    room = room_of(importer)
    if imported in ("shardsrv", "shardsrv.__version__"):
        return True
    name = imported.removeprefix("shardsrv.")
    return any(name == door or name.startswith(f"{door}.") for door in MAY_IMPORT[room])


def complaints_of_direction(text: str, module: str, package: bool = False) -> list[str]:
    return [
        f"{module}:{line} imports {name}"
        for name, line in imports(ast.parse(text), module, package)
        if (name == "shardsrv" or name.startswith("shardsrv.")) and not allowed(module, name)
    ]


class Impurities(ast.NodeVisitor):
    """What a pure room may not contain: clocks, files, chance, waiting, and orders that differ from run to run."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._sets: list[set[str]] = [set()]

    def complain(self, node: ast.AST, what: str) -> None:
        self.found.append(f"line {getattr(node, 'lineno', 0)}: {what}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] in IMPURE:
                self.complain(node, f"imports {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] in IMPURE:
            self.complain(node, f"imports from {node.module}")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.complain(node, f"async def {node.name}")

    def visit_Await(self, node: ast.Await) -> None:
        self.complain(node, "await")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._sets.append(set())
        self.generic_visit(node)
        self._sets.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if self.is_set(node.value):
            for target in node.targets:
                self._sets[-1].add(ast.unparse(target))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        kind = ast.unparse(node.annotation)
        if kind.split("[")[0] in ("set", "frozenset") or (node.value is not None and self.is_set(node.value)):
            self._sets[-1].add(ast.unparse(node.target))

    def visit_For(self, node: ast.For) -> None:
        self._iterated(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._iterated(node.iter)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("hash", "open", "input", "id"):
            self.complain(node, f"calls {name}()")
        if name in ("list", "tuple", "iter", "next", "enumerate") and node.args:
            self._iterated(node.args[0])
        self.generic_visit(node)

    def _iterated(self, node: ast.expr) -> None:
        if self.is_set(node):
            self.complain(node, f"iterates over the set {ast.unparse(node)}")

    def is_set(self, node: ast.expr) -> bool:
        """Whether the syntax shows a set; names count where they were assigned or annotated as one."""
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            return self.is_set(node.left) or self.is_set(node.right)
        return any(ast.unparse(node) in names for names in self._sets)


def impurities(text: str) -> list[str]:
    visitor = Impurities()
    visitor.visit(ast.parse(text))
    return visitor.found


# --- the rules on the product ----------------------------------------------------------------------------------------


def test_every_room_has_a_rule() -> None:
    rooms = {room_of(name_of(path)) for path in sources(".py", ".pyx")}
    assert rooms - {"shardsrv"} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", sources(".py", ".pyi"), ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    if name_of(path) == "shardsrv":
        assert not complaints_of_direction(path.read_text(), "shardsrv.quantities")
        return
    assert complaints_of_direction(path.read_text(), name_of(path), path.stem == "__init__") == []


@pytest.mark.parametrize("path", sources(".pyx", ".pxd", ".pxi"), ids=lambda path: path.name)
def test_compiled_modules_import_one_way(path: Path) -> None:
    room = room_of(name_of(path))
    room = "_core" if room.startswith("_core") else room
    for number, line in enumerate(path.read_text().split("\n"), 1):
        words = line.split()
        if len(words) > 1 and words[0] in ("from", "import", "cimport") and words[1].startswith("shardsrv."):
            own = words[1].removeprefix("shardsrv.").startswith(room)
            error = words[1] == "shardsrv.errors"
            assert own or error or allowed(f"shardsrv.{room}", words[1]), f"{path.name}:{number} {line.strip()}"


@pytest.mark.parametrize("path", [path for path in sources(".py") if room_of(name_of(path)) in PURE], ids=name_of)
def test_what_decides_is_pure(path: Path) -> None:
    assert impurities(path.read_text()) == []


def test_nothing_imports_the_simulator() -> None:
    for path in sources(".py", ".pyx"):
        if room_of(name_of(path)) not in TEST_ROOMS:
            assert "shardsrv.sim" not in path.read_text(), path


# --- the rules themselves, each shown to bite ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("shardsrv.wire.x", "from shardsrv.vsr.state import VsrState"),
        ("shardsrv.vsr.x", "from shardsrv.plane import partition"),
        ("shardsrv.vsr.x", "from shardsrv import plane"),
        ("shardsrv.plane.x", "def f():\n    import shardsrv.store.log"),
        ("shardsrv.store.x", "from shardsrv.vsr.replica import Replica"),
        ("shardsrv.store.x", "from ..plane import metadata"),
        ("shardsrv.bus.x", "from shardsrv.plane.metadata import x"),
        ("shardsrv.shards.x", "from shardsrv.cli import main"),
        ("shardsrv.shards.x", "import shardsrv.sim"),
    ],
)
def test_an_import_against_the_direction_is_found(module: str, line: str) -> None:
    assert len(complaints_of_direction(line, module)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from os import path",
        "import threading",
        "async def f(): ...",
        "x = hash('text')",
        "for x in {1, 2}: ...",
        "for x in set(y): ...",
        "names: set[str] = set()\nfor x in names: ...",
        "def f():\n    seen = set()\n    return [x for x in seen]",
        "seen = frozenset(a)\nb = list(seen | {1})",
    ],
)
def test_an_impurity_is_found(text: str) -> None:
    assert len(impurities(text)) == 1


@pytest.mark.parametrize(
    "text", ["for x in sorted({1, 2}): ...", "names = set()\nif 1 in names: ...", "n = len({1})", "a = b | c"]
)
def test_what_is_pure_passes(text: str) -> None:
    assert impurities(text) == []
