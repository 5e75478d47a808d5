"""The rules of CONTRIBUTING.md that a program can check."""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("service", "workers", "dpledger", "api_tests", "benchmarks")
LONGEST_MODULE = 500
LONGEST_FUNCTION = 70
# Joined here, so that this file does not name them either.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("deb", "debian", "org"),
        ("conda", "anaconda", "org"),
    )
)
# The core is told the time, its keys and its random numbers; it looks nothing up.
IMPURE = {"asyncio", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random"}
IMPURE |= {"secrets", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "threading"}
IMPURE |= {"time", "urllib", "uuid"}


def python_files(*packages: str) -> list[Path]:
    found = [path for name in packages or PACKAGES for path in (ROOT / name).rglob("*.py")]
    assert found
    return found


def trees(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for path in python_files(*packages):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def names_used(tree: ast.Module) -> set[str]:
    """Every name, attribute and imported dotted name."""
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                used.add(name)
            case ast.Import(names=aliases):
                used |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases):
                used |= {module or "", *(alias.name for alias in aliases)}
                used |= {f"{module}.{alias.name}" for alias in aliases}
    return used


def tracked_files() -> list[Path]:
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def test_no_module_is_longer_than_500_lines():
    lines = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert not {path: n for path, n in lines.items() if n > LONGEST_MODULE}


def test_no_function_is_longer_than_70_lines():
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in trees()
        if "/migrations/versions/" not in path  # a list of tables, read once
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long


def test_only_the_session_commits():
    commits = {
        path
        for path, tree in trees("service", "workers")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "commit"
    }
    assert commits <= {"service/db/session.py"}


def test_there_is_no_global_statement():
    found = [
        path for path, tree in trees() if any(isinstance(n, ast.Global) for n in ast.walk(tree))
    ]
    assert not found


@pytest.mark.parametrize("name", ["BackgroundTasks", "BaseHTTPMiddleware", "create_all"])
def test_the_service_does_without(name):
    assert not [path for path, tree in trees("service", "workers") if name in names_used(tree)]


def test_the_service_never_names_the_accountants_that_pull_torch_in():
    pulls = [
        path
        for path, tree in trees("service")
        if any(name.split(".")[0] in {"opacus", "torch"} for name in names_used(tree))
    ]
    assert not pulls


def test_no_module_is_named_for_having_no_subject():
    empty_names = {"utils", "util", "helpers", "helper", "managers", "manager", "common", "misc"}
    assert not [path for path in python_files() if path.stem in empty_names]


def test_the_core_imports_the_standard_library_numpy_and_scipy_alone():
    allowed = (sys.stdlib_module_names - IMPURE) | {"numpy", "scipy"}
    strange = {
        f"{path}: {name}"
        for path, tree in trees("service/core")
        for name in imported(tree.body)
        if not name.startswith("service.core") and name.split(".")[0] not in allowed
    }
    assert not strange


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """What is imported when a module is; imports inside functions are lazy."""
    for node in body:
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module):
                yield module or "."
            case ast.If() | ast.Try():
                yield from imported([*node.body, *node.orelse])


def test_the_core_s_lazy_imports_are_the_two_other_accountants():
    allowed = sys.stdlib_module_names | {"numpy", "scipy", "dp_accounting", "prv_accountant"}
    strange = {
        f"{path}: {node.module}"
        for path, tree in trees("service/core")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and not (node.module or "").startswith("service.core")
        and (node.module or "").split(".")[0] not in allowed
    }
    assert not strange


def test_importing_the_whole_service_loads_no_torch():
    skipped = ("__main__", "env", "versions")
    modules = pkgutil.walk_packages([str(ROOT / "service")], prefix="service.")
    names = [m.name for m in modules if not {*skipped} & {*m.name.split(".")}]
    code = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; "
    code += "print(sorted({'torch', 'opacus'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_import_contracts_are_kept():
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_file_names_a_package_registry():
    named = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in tracked_files()
        for host in REGISTRY_HOSTS
        if host.encode() in path.read_bytes()
    ]
    assert not named
