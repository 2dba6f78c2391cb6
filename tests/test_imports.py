"""Imports flow one way, and `import posterity` loads nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import posterity

ROOT = Path(posterity.__file__).parent

# A module imports what stands before its own part, in its own part, and what is shared.
SHARED = ("errors", "tree", "random", "history", "group")
ORDER = ("problem", "posterior", "inference", "prediction", "model", "evaluation", "training", "models")
# may import all of the package; nothing before does
END = (
    "interfaces", "testing", "bench", "sklearn", "huggingface", "lightning", "torchmetrics", "loggers", "__init__",
    "__main__",
)  # fmt: skip
CORE = {"torch", "numpy", "safetensors", "rich", "typer"}
HEAVY = (
    "sklearn", "pandas", "scipy", "matplotlib", "transformers", "hypothesis", "pyarrow", "altair", "jinja2", "PIL", "yaml",
    "arviz", "xarray", "accelerate", "lightning", "pytorch_lightning", "torchmetrics", "tensorboard", "mlflow",
)  # fmt: skip


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST) -> Iterator[str]:
    """Dotted names that a statement imports; `from a import b` may mean a.b or b of a."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("name", "tree"), [pytest.param(name, tree, id=name) for name, tree in modules()])
def test_imports_flow_one_way(name: str, tree: ast.Module) -> None:
    part = name.split(".")[0]
    assert part in (*SHARED, *ORDER, *END), f"{name} has no place in the order of imports"
    if part in END:
        return
    before = SHARED if part in SHARED else (*SHARED, *ORDER[: ORDER.index(part) + 1])
    for node in ast.walk(tree):
        for target in imported(node):
            first, inner = (*target.split(".")[:2], "")[:2]
            line = getattr(node, "lineno", 0)
            assert first != "posterity" or inner in before, (
                f"{name}, line {line}: {target} does not stand before {part}"
            )


@pytest.mark.parametrize(("name", "tree"), [pytest.param(name, tree, id=name) for name, tree in modules()])
def test_a_module_loads_the_core_dependencies_only(name: str, tree: ast.Module) -> None:
    """What comes with an extra is imported where it is used."""
    if name.split(".")[0] == "bench":
        return
    for node in tree.body:
        for target in imported(node):
            first = target.split(".")[0]
            fine = first in CORE or first == "posterity" or first in sys.stdlib_module_names
            assert fine, f"{name} imports {first} when it is loaded"


def test_import_posterity_loads_nothing_heavy() -> None:
    code = "import sys, json, posterity; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(json.loads(done.stdout))
    assert "torch" in loaded
    assert not loaded & set(HEAVY)
