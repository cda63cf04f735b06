"""Which part of the package may import which, and what runs where nothing extra is installed.

The rule is `LINES`: a file imports only from its own line or from one below. Imports inside
functions and those for type checkers count as well, since they are dependencies all the same;
only torch, which takes seconds to load, is judged by when it is imported.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "entrepot"

LINES = (
    {"arguments", "errors", "logs", "settings", "signals", "sizes"},
    {"contract", "mediums", "store", "tensors"},
    {"market"},
    {"capture", "stages", "study"},
    {"testing"},
    {"doctor", "federation", "training"},
    {"__main__", "cli", "demo", "sidecar"},
)
LINE_OF = {unit: number for number, line in enumerate(LINES) for unit in line}

STRANGERS = {("market", "study"), ("study", "market")}

TORCH_AT_TOP = ("capture", "federation", "stages.torch", "training")
TORCH_IN_FUNCTIONS = ("contract", "tensors")

# What the core install lacks: the packages of every extra, by the names they are imported by.
EXTRAS = (
    "fastapi",
    "hypothesis",
    "jinja2",
    "numpy",
    "obstore",
    "optuna",
    "prometheus_client",
    "psutil",
    "pytest",
    "scipy",
    "torch",
    "uvicorn",
    "yaml",
)
NEEDS_AN_EXTRA = (
    "capture",
    "contract",
    "tensors",
    "demo",
    "federation",
    "sidecar",
    "stages",
    "store.bucket",
    "study",
    "testing",
    "training",
)


# --- the rule ---------------------------------------------------------------------------


class When(Enum):
    """When an import is carried out."""

    AT_TOP = "with the module"
    IN_FUNCTION = "when a function is called"
    FOR_TYPES = "never, for type checkers only"


@dataclass(frozen=True)
class Import:
    """One import: dotted names as in Python, ``entrepot`` included; the line in the file."""

    importer: str
    target: str
    when: When
    line: int


def modules_below(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class Collector(ast.NodeVisitor):
    """Gathers the imports of one module, with when each happens."""

    def __init__(self, module: str, is_package: bool, known: set[str]) -> None:
        self.imports: list[Import] = []
        self._module = module
        self._home = module.split(".") if is_package else module.split(".")[:-1]
        self._known = known
        self._when = When.AT_TOP

    def _add(self, target: str, node: ast.AST) -> None:
        self.imports.append(Import(self._module, target, self._when, getattr(node, "lineno", 0)))

    def _inside(self, when: When, nodes: Sequence[ast.AST]) -> None:
        before, self._when = self._when, when
        for node in nodes:
            self.visit(node)
        self._when = before

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._home[: len(self._home) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{source}.{alias.name}"
            self._add(name if name in self._known else source, node)

    def visit_Call(self, node: ast.Call) -> None:
        called = getattr(node.func, "attr", getattr(node.func, "id", None))
        match node.args:
            case [ast.Constant(value=str(name)), *_] if called in ("import_module", "__import__"):
                self._add(name, node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        name = getattr(node.test, "attr", getattr(node.test, "id", None))
        self._inside(When.FOR_TYPES if name == "TYPE_CHECKING" else self._when, node.body)
        self._inside(self._when, node.orelse)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._inside(When.IN_FUNCTION, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(When.IN_FUNCTION, [node.body])


def imports_of(package: Path) -> Iterator[Import]:
    modules = modules_below(package)
    for name, path in modules.items():
        collector = Collector(name, path.name == "__init__.py", set(modules))
        collector.visit(ast.parse(path.read_text(), filename=str(path)))
        yield from collector.imports


def among(module: str, names: tuple[str, ...]) -> bool:
    """Whether the module, without its ``entrepot.``, is one of the names or inside one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def wrong_with(found: Import) -> str | None:
    """What is wrong with one import, or nothing."""
    importer = found.importer.partition(".")[2]
    at_top = found.when is When.AT_TOP
    if found.target.partition(".")[0] == "torch":
        if found.when is When.FOR_TYPES or among(importer, TORCH_AT_TOP):
            return None
        if among(importer, TORCH_IN_FUNCTIONS):
            return "imports torch at its top, not in a function" if at_top else None
        return "is not one of those that import torch"
    if found.target.partition(".")[0] != "entrepot":
        return None
    target = found.target.partition(".")[2]
    own, other = importer.partition(".")[0], target.partition(".")[0]
    if not other:
        return None
    if other not in LINE_OF:
        return f"{other} has no line: give it one in LINES"
    if not own:  # the root: the lightest of all when it is imported, and a door to all the rest
        return "makes the root load more than the ground" if at_top and LINE_OF[other] else None
    if own not in LINE_OF:
        return f"{own} has no line: give it one in LINES"
    if (own, other) in STRANGERS:
        return f"{own} and {other} never import each other"
    if LINE_OF[other] > LINE_OF[own]:
        return f"{other} stands above {own}"
    if at_top and among(target, TORCH_AT_TOP) and not among(importer, TORCH_AT_TOP):
        return "would load torch with the module"
    return None


def violations(package: Path) -> list[str]:
    """A line for each import that breaks the rule, and for each part without a line."""
    found = [
        f"{each.importer}, line {each.line}, imports {each.target}: {wrong}"
        for each in imports_of(package)
        if (wrong := wrong_with(each)) is not None
    ]
    units = {name.split(".")[1] for name in modules_below(package) if "." in name}
    found += [f"{unit} has no line: give it one in LINES" for unit in sorted(units - set(LINE_OF))]
    return found


# --- the package holds it ---------------------------------------------------------------


def test_the_package_imports_downwards_only() -> None:
    assert violations(PACKAGE) == []


def test_the_package_is_what_was_looked_at() -> None:
    seen = {(each.importer, each.target) for each in imports_of(PACKAGE)}
    assert ("entrepot.market.protocol", "entrepot.errors") in seen


def run_python(source: str) -> str:
    """What a fresh interpreter prints; fails with what it said when it fails."""
    result = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


BLOCK = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"{{name}} is not in the core install", name=name)

sys.meta_path.insert(0, Blocker())
"""


def test_the_core_runs_without_any_extra() -> None:
    core = [
        name
        for name in modules_below(PACKAGE)
        if not among(name.partition(".")[2], NEEDS_AN_EXTRA) and not name.endswith("__main__")
    ]
    assert {"entrepot", "entrepot.market.protocol", "entrepot.mediums.shm"} <= set(core)
    run_python(BLOCK + "".join(f"import {name}\n" for name in core))


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_blocker_blocks(extra: str) -> None:
    with pytest.raises(AssertionError, match=f"{extra} is not in the core install"):
        run_python(f"{BLOCK}\nimport {extra}")


def test_the_market_does_not_load_what_it_does_not_need() -> None:
    said = run_python(
        "import sys, entrepot, entrepot.market\n"
        f"print(*(name for name in {EXTRAS!r} if name in sys.modules))"
    )
    assert said.split() == []


# --- the rule is one that can be broken -------------------------------------------------


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A package with an empty file for each part."""
    package = tmp_path / "entrepot"
    package.mkdir()
    (package / "__init__.py").touch()
    for unit in LINE_OF:
        if unit in ("market", "mediums", "stages", "study"):
            (package / unit).mkdir()
            (package / unit / "__init__.py").touch()
        else:
            (package / f"{unit}.py").touch()
    (package / "stages" / "torch.py").write_text("import torch\n")
    return package


def plant(package: Path, file: str, source: str) -> list[str]:
    (package / file).write_text(source)
    return violations(package)


def test_an_empty_package_breaks_nothing(planted: Path) -> None:
    assert violations(planted) == []


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        ("market/broker.py", "import entrepot.study", "market and study never import each other"),
        ("study/trials.py", "from entrepot import market", "study and market never import"),
        ("study/trials.py", "from ..market import broker", "study and market never import"),
        ("market/broker.py", "from entrepot.cli import main", "cli stands above market"),
        ("market/broker.py", "from ..sidecar import app", "sidecar stands above market"),
        ("mediums/shm.py", "def f():\n    import entrepot.market", "market stands above mediums"),
        ("errors.py", "import entrepot.mediums.base as b", "mediums stands above errors"),
        ("testing.py", "import entrepot.training", "training stands above testing"),
        ("stages/server.py", "import entrepot.testing", "testing stands above stages"),
        ("training.py", "from . import demo", "demo stands above training"),
        (
            "store.py",
            "if TYPE_CHECKING:\n    from entrepot.market import Client",
            "market stands above store",
        ),
        (
            "market/broker.py",
            "import importlib\nimportlib.import_module('entrepot.study')",
            "market and study never import each other",
        ),
        ("market/broker.py", "import torch", "is not one of those that import torch"),
        ("market/broker.py", "def f():\n    import torch.nn", "is not one of those that import"),
        ("stages/server.py", "from torch import nn", "is not one of those that import torch"),
        ("contract.py", "import torch", "imports torch at its top"),
        ("contract.py", "try:\n    import torch\nexcept ImportError: ...", "torch at its top"),
        ("contract.py", "class C:\n    import torch", "imports torch at its top"),
        ("contract.py", "if not TYPE_CHECKING:\n    import torch", "imports torch at its top"),
        ("contract.py", "if TYPE_CHECKING: ...\nelse:\n    import torch", "torch at its top"),
        ("stages/__init__.py", "from entrepot.stages.torch import Stage", "would load torch"),
        ("stages/server.py", "from . import torch", "would load torch with the module"),
        ("cli.py", "from entrepot import training", "would load torch with the module"),
        ("__init__.py", "from entrepot.market import Broker", "makes the root load more"),
        ("warehouse.py", "", "warehouse has no line"),
        ("market/broker.py", "import entrepot.warehouse", "warehouse has no line"),
    ],
)
def test_a_planted_violation_is_found(planted: Path, file: str, source: str, said: str) -> None:
    found = plant(planted, file, source)
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("market/broker.py", "from entrepot import errors\nfrom ..mediums import base"),
        ("market/broker.py", "import entrepot\nfrom entrepot import __version__"),
        ("study/trials.py", "import entrepot.store, entrepot.stages"),
        ("testing.py", "import entrepot.market, entrepot.study, entrepot.mediums"),
        ("contract.py", "def f():\n    import torch"),
        ("contract.py", "f = lambda: __import__('torch')"),
        ("contract.py", "if TYPE_CHECKING:\n    import torch"),
        ("market/client.py", "if TYPE_CHECKING:\n    import torch"),
        ("federation.py", "import torch\nfrom entrepot import training"),
        ("stages/__init__.py", "def f():\n    from entrepot.stages import torch"),
        ("cli.py", "async def f():\n    import entrepot.training"),
        ("__init__.py", "import entrepot.errors\ndef __getattr__(n):\n    import entrepot.market"),
        ("demo.py", "import torchlight, entrepotish"),
    ],
)
def test_what_the_rule_allows_is_not_reported(planted: Path, file: str, source: str) -> None:
    assert plant(planted, file, source) == []
