"""Reads a config file, or says everything that is wrong with it.

Only what one file and the schema can show. Whether the values go together, and fit
the model and the machine, is for `configs/checks`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.errors import ConfigError, ConfigProblem
from configs.schema import ClusterConfig
from configs.wording import Place, dotted, kind_of, problems_of


def load_config(path: str | Path) -> ClusterConfig:
    """The cluster that the YAML file at `path` describes, its relative paths made full.

    Raises:
        ConfigError: the file is missing, is no YAML, repeats a key, or has a value the
            schema does not allow. Carries all problems that can be told, not only the first.
    """
    file = str(path)
    problems: list[ConfigProblem] = []
    try:
        values, problems = _parse(_read(Path(path), file), file)
        config = parse_config(values, file, Path(path).absolute().parent)
    except RecursionError:
        problems.append(ConfigProblem(file, "", "sections are nested too deeply"))
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return config


def parse_config(values: object, source: str, folder: Path | None = None) -> ClusterConfig:
    """The cluster that a mapping describes, as YAML or `serve deploy` hands it over.

    Args:
        values: The mapping.
        source: What problems name as their file.
        folder: Where relative paths start; None leaves them relative.

    Raises:
        ConfigError: with every value that the schema does not allow.
    """
    if not isinstance(values, dict):
        reason = f"must be a section of keys, not {kind_of(values)}"
        raise ConfigError([ConfigProblem(source, "", reason)])
    try:
        return ClusterConfig.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        raise ConfigError(problems_of(error, source)) from None


def _read(path: Path, file: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        reason = "there is no such file"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    raise ConfigError([ConfigProblem(file, "", reason)])


class _Loader(yaml.SafeLoader):
    """YAML's plain types, without dates: `2024-01-01` is text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of `node`.

        Raises:
            yaml.constructor.ConstructorError: also where PyYAML lets Python's own error
                through (`!!int x`, `!!bool x`, `!!timestamp x`, a number without end).
        """
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"this is no valid {kind}", node.start_mark
            ) from None


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse(text: str, file: str) -> tuple[Any, list[ConfigProblem]]:
    """The values in a YAML text, and every key that a section has twice.

    Raises:
        ConfigError: it is not YAML, or an anchor in it contains itself.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, []
        problems = [
            ConfigProblem(file, dotted(where), reason)
            for where, reason in _repeated_keys(node, (), (), set())
        ]
        return loader.construct_document(node), problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = f"{at}not valid YAML: {error.problem or error.context}"
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        reason = f"line {line}, column {column}: not valid YAML: a character that cannot be printed"
    raise ConfigError([ConfigProblem(file, "", reason)])


def _repeated_keys(
    node: yaml.Node, where: Place, above: tuple[yaml.Node, ...], seen: set[int]
) -> Iterator[tuple[Place, str]]:
    """Keys that a section at or below `node` has twice; an anchor is looked into once.

    Raises:
        yaml.composer.ComposerError: an anchor contains itself.
    """
    if any(node is outer for outer in above):
        raise yaml.composer.ComposerError(None, None, "the anchor contains itself", node.start_mark)
    if id(node) in seen:
        return
    seen.add(id(node))
    above += (node,)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated_keys(item, (*where, index), above, seen)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            yield from _repeated_keys(key, where, above, seen)
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode):
                if first := lines.get((key.tag, name)):
                    yield (*where, name), f"is given twice (lines {first} and {line}); keep one"
                lines[key.tag, name] = line
            yield from _repeated_keys(value, (*where, name), above, seen)
