"""The house: imports point down only, and files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; a module may import from its own line and from lines above it in this list.
LAYERS = [
    ["version", "errors"],
    ["config", "versions"],
    ["runtime"],
    ["horovod"],
    ["comm"],
    ["batch", "replica", "written", "update", "xla", "optimizers", "rate_control", "fused_updates"],
    [
        "data",
        "metrics",
        "drift",
        "statistics",
        "export",
        "loss_parts",
        "interception",
        "learning_rate",
        "layers",
    ],
    ["supported", "own_steps", "door", "block", "metric_trial"],
    ["supervise", "plan", "callback", "start_state", "building"],
    ["step", "session"],
    ["loss_trial"],
    ["trial"],
    ["hooks"],
    ["loop"],
    ["preparation"],
    ["on_batch"],
    ["trainer", "api"],
    ["callbacks"],
    ["testing", "cli", "__main__"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}
FILES = sorted([*(ROOT / "fittrain").rglob("*.py"), *(ROOT / "callbacks").rglob("*.py")])


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "fittrain" else "callbacks"


def imported(path):
    """First names below `fittrain` that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            head, _, rest = node.module.partition(".")
            if head == "fittrain":
                yield from [rest.partition(".")[0]] if rest else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("fittrain."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_only(path):
    own = module_of(path)
    if own == "__init__":
        return  # the public names, which come from everywhere
    upward = [name for name in imported(path) if LEVEL[name] > LEVEL[own]]
    assert upward == []


def test_every_module_has_a_place():
    modules = {module_of(path) for path in FILES} - {"__init__"}
    assert modules == set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 50, node.name


def test_only_one_file_holds_a_gradient_tape():
    assert [p.name for p in FILES if "GradientTape" in p.read_text()] == ["step.py"]


def test_nothing_asks_whether_there_is_one_rank():
    asking = [str(p.relative_to(ROOT)) for p in FILES if "size == 1" in p.read_text()]
    # The choice of a backend, and Slurm's hint that `srun` was forgotten.
    assert asking == ["fittrain/comm/__init__.py", "fittrain/runtime/host.py"]
