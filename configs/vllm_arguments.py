"""The arguments that the installed vLLM takes, read from its source.

Importing vLLM takes seconds and starts torch; the names stand in two dataclasses,
`AsyncEngineArgs` and `FrontendArgs`, which is all that Ray Serve LLM accepts.
"""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

# vLLM 0.32.
FILES = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")
CLASSES = ("EngineArgs", "AsyncEngineArgs", "BaseFrontendArgs", "FrontendArgs")


def vllm_arguments() -> frozenset[str] | None:
    """Names of every engine and front-end argument; None without a vLLM that we know."""
    spec = find_spec("vllm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        return None
    try:
        sources = [(Path(folders[0]) / file).read_text(encoding="utf-8") for file in FILES]
    except OSError:
        return None
    return frozenset(name for source in sources for name in _field_names(ast.parse(source)))


def _field_names(module: ast.Module) -> Iterator[str]:
    for definition in module.body:
        if isinstance(definition, ast.ClassDef) and definition.name in CLASSES:
            for line in definition.body:
                name = line.target if isinstance(line, ast.AnnAssign) else None
                if isinstance(name, ast.Name) and not name.id.startswith("_"):
                    yield name.id
