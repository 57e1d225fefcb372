"""The import rules of docs/architecture.md, checked on the syntax trees of all modules."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "retool"

COMPONENTS = ("data", "policy", "ppo", "protocol", "report", "reward", "rollout", "sandbox", "tracking")
ENTRY_POINTS = ("train", "eval", "sft", "serve")

# Modules of plain types and protocols, which other components may import.
TYPES = {
    "retool.data.problem",
    "retool.sandbox.base",
    "retool.reward.verdict",
    "retool.policy.types",
    "retool.rollout.trajectory",
    "retool.tracking.base",
}
# The only components that know another one beyond its types, and why.
EXCEPTIONS = {
    ("rollout", "protocol"): "a rollout drives the chat protocol turn by turn; it is pure and has no state",
}
# Who may import the engine from outside, and why.
ENGINE_USERS = {
    "retool.runs.serve": "retool-serve is the engine in the foreground; everything else starts it as a process",
}

HEAVY = {"torch", "transformers", "pytrio", "swanlab", "datasets", "sympy", "math_verify", "latex2sympy2_extended"}
HEAVY |= {"peft", "safetensors", "tokenizers", "huggingface_hub", "gguf"}
# Packages that cannot work without theirs, and whose modules nobody imports at start-up.
NEEDS_HEAVY = {"engine": {"torch", "safetensors", "tokenizers"}}


@dataclass(frozen=True)
class Import:
    """`when`: "start" as the module is loaded, "late" inside a function, "typing" for the type checker alone."""

    importer: str
    imported: str
    when: str


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def component(module: str) -> str:
    """The part of the package that a module belongs to: "rollout" for `retool.rollout.groups`, "" for `retool`."""
    return [*module.split("."), ""][1]


def imports_of(importer: str, node: ast.AST, when: str = "start") -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "start":
            inner = "late"
        if isinstance(child, ast.If) and any(
            isinstance(name, ast.Name) and name.id == "TYPE_CHECKING" for name in ast.walk(child.test)
        ):
            for statement in child.body:
                yield from imports_of(importer, ast.Module([statement], []), "typing")
            for statement in child.orelse:
                yield from imports_of(importer, ast.Module([statement], []), when)
            continue
        if isinstance(child, ast.Import):
            yield from (Import(importer, alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{importer} has a relative import"
            for alias in child.names:
                submodule = f"{child.module}.{alias.name}"
                yield Import(importer, submodule if submodule in MODULES else str(child.module), when)
        yield from imports_of(importer, child, inner)


FILES = {module_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}
MODULES = frozenset(FILES)
IMPORTS = [
    found for module, file in FILES.items() for found in imports_of(module, ast.parse(file.read_text(encoding="utf-8")))
]
OWN = [found for found in IMPORTS if found.imported.split(".")[0] == "retool" and found.imported != "retool"]


def between(importers: tuple[str, ...]) -> list[Import]:
    """Imports by these parts of modules of other parts."""
    return [i for i in OWN if component(i.importer) in importers and component(i.imported) != component(i.importer)]


def test_the_package_is_understood():
    assert len(MODULES) > 100
    known = {*COMPONENTS, *ENTRY_POINTS, "", "config", "engine", "errors", "runs"}
    assert {component(module) for module in MODULES} <= known
    assert TYPES | set(ENGINE_USERS) <= MODULES


def test_imports_are_found_wherever_they_stand():
    source = """
import torch
if TYPE_CHECKING:
    import pytrio
def f():
    from retool.engine import loop
"""
    found = [(i.imported, i.when) for i in imports_of("m", ast.parse(source))]
    assert found == [("torch", "start"), ("pytrio", "typing"), ("retool.engine.loop", "late")]


def test_components_meet_in_types_alone():
    wrong = [
        found
        for found in between(COMPONENTS)
        if component(found.imported) != "errors"
        and found.imported not in TYPES
        and (component(found.importer), component(found.imported)) not in EXCEPTIONS
    ]
    assert wrong == []


def test_types_import_types_alone():
    wrong = [found for found in OWN if found.importer in TYPES and found.imported not in TYPES | {"retool.errors"}]
    assert wrong == []


def test_nobody_imports_the_engine():
    wrong = [
        found
        for found in OWN
        if component(found.imported) == "engine"
        and component(found.importer) != "engine"
        and not (found.importer in ENGINE_USERS and found.when == "late")
    ]
    assert wrong == []


def test_the_engine_imports_nobody():
    allowed = {"engine", "errors", "config"}
    assert [found for found in between(("engine",)) if component(found.imported) not in allowed] == []


def test_nobody_imports_runs_but_the_entry_points():
    wrong = [
        found
        for found in OWN
        if component(found.imported) == "runs" and component(found.importer) not in ("runs", *ENTRY_POINTS)
    ]
    assert wrong == []


def test_config_and_errors_stand_alone():
    assert [found for found in between(("config",)) if component(found.imported) != "errors"] == []
    assert between(("errors",)) == []


@pytest.mark.parametrize("package", sorted({component(module) for module in MODULES} - {"engine"}))
def test_nothing_heavy_is_imported_at_start(package):
    wrong = [
        found
        for found in IMPORTS
        if component(found.importer) == package
        and found.when == "start"
        and found.imported.split(".")[0] in HEAVY - NEEDS_HEAVY.get(package, set())
    ]
    assert wrong == []


def test_the_engine_imports_only_the_heavy_packages_that_it_computes_with():
    found = {
        found.imported.split(".")[0]
        for found in IMPORTS
        if component(found.importer) == "engine" and found.when == "start"
    }
    assert found & HEAVY <= NEEDS_HEAVY["engine"]


def test_only_policy_speaks_to_the_service():
    assert {component(i.importer) for i in IMPORTS if i.imported.split(".")[0] == "pytrio"} == {"policy"}
