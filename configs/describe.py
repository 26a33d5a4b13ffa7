"""Every setting in words, read from the schema: for the docs and the chart.

The page is made by `python -m configs.describe > docs/configuration.md`.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from configs.schema import ClusterConfig
from configs.sections.values import PATTERN_WORDS, Section, section_of

REQUIRED = "required"
WORDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    Any: "anything",
}


@dataclass(frozen=True)
class Setting:
    """One key of a config; `default` is JSON, `required`, or empty for what is a section."""

    key: str
    type: str
    default: str
    description: str


def describe_schema() -> list[Setting]:
    """Every setting of a config, in the order of the schema, sections included.

    Keys are dotted; `[]` stands for each item of a list (`model.adapters[].name`).
    """
    return list(_settings(ClusterConfig, ""))


def configuration_page() -> str:
    """docs/configuration.md: a table for each section, a section used twice only once."""
    places: dict[type[Section], list[str]] = {}
    _collect_places(ClusterConfig, "", places)
    lines = [
        "# Configuration",
        "",
        "One YAML file describes one cluster. Every key, its type, its default and what it is for;",
        "made from `configs/sections` by `python -m configs.describe`. A list is marked `[]`.",
        "Relative paths start at the file's own folder, and `~` is the home folder. Which values",
        "do not go together is said by `paceline check`.",
    ]
    for section, keys in places.items():
        title = ", ".join(f"`{key}`" for key in keys) or "The file"
        lines += ["", f"## {title}", "", _text(section.__doc__), ""]
        lines += ["| key | type | default | what it is |", "|---|---|---|---|"]
        lines += [
            "| " + " | ".join(_cell(value) for value in row) + " |"
            for row in (
                (f"`{s.key}`", s.type, _default_cell(s.default), s.description)
                for s in _own_settings(section)
            )
        ]
    return "\n".join(lines) + "\n"


def _settings(section: type[Section], prefix: str) -> Iterator[Setting]:
    for name, own in zip(section.model_fields, _own_settings(section), strict=True):
        yield Setting(prefix + own.key, own.type, own.default, own.description)
        if inner := section_of(section.model_fields[name].annotation):
            yield from _settings(inner, f"{prefix}{own.key}.")


def _own_settings(section: type[Section]) -> Iterator[Setting]:
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        yield Setting(
            key=_key(name, field),
            type=_type_words(field.annotation) + _range_words(field),
            default=_default(field),
            description=_text(field.description or (inner.__doc__ if inner else "")),
        )


def _collect_places(
    section: type[Section], key: str, places: dict[type[Section], list[str]]
) -> None:
    keys = places.setdefault(section, [])
    if key:
        keys.append(key)
    for name, field in section.model_fields.items():
        if inner := section_of(field.annotation):
            _collect_places(inner, f"{key}.{_key(name, field)}".lstrip("."), places)


def _key(name: str, field: FieldInfo) -> str:
    is_list = section_of(field.annotation) and get_origin(field.annotation) is tuple
    return name + "[]" if is_list else name


def _type_words(annotation: Any) -> str:
    if annotation in WORDS:
        return WORDS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, UnionType):
        return ", or ".join(_type_words(part) for part in parts if part is not NoneType)
    if origin is tuple:
        return "list of sections" if section_of(parts[0]) else f"list of: {_type_words(parts[0])}"
    if origin is dict:
        return f"{_type_words(parts[0])} to {_type_words(parts[1])}"
    if section_of(annotation):
        return "section"
    words = _type_words(parts[0])  # of Annotated
    return words + "".join(_range_words(info) for info in parts[1:] if isinstance(info, FieldInfo))


def _range_words(field: FieldInfo) -> str:
    limits = {
        name: getattr(limit, name)
        for limit in field.metadata
        for name in ("ge", "gt", "le", "lt", "pattern")
        if getattr(limit, name, None) is not None
    }
    if "pattern" in limits:
        return f" ({PATTERN_WORDS[limits['pattern']]})"
    if "ge" in limits and "le" in limits:
        return f" ({limits['ge']} to {limits['le']})"
    words = [
        f"{sign} {limits[name]}"
        for name, sign in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        if name in limits
    ]
    return f" ({', '.join(words)})" if words else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    if field.default is PydanticUndefined or isinstance(field.default, BaseModel):
        return ""
    return json.dumps(field.default, default=_plain)


def _plain(value: Any) -> Any:
    is_section = isinstance(value, Section)
    return value.model_dump(mode="json", exclude_none=True) if is_section else str(value)


def _text(doc: str | None) -> str:
    return " ".join((doc or "").split())


def _default_cell(default: str) -> str:
    return default if default in ("", REQUIRED) else f"`{default}`"


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
