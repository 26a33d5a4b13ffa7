"""What is wrong with a single value, in words for the person who wrote it.

Turns pydantic's errors into problems. A value is shown only where it cannot be a
secret: text and sections that turn up in the wrong place are named by their kind.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from configs.errors import ConfigProblem
from configs.schema import ClusterConfig
from configs.sections.values import PATTERN_WORDS, Section, section_of

Place = tuple[int | str, ...]

# Text that YAML would read as a number or as true or false, were it not in quotes.
UNQUOTED = r"[-+]?[\d.]+|true|false|yes|no|on|off"

BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
}


def problems_of(error: ValidationError, file: str) -> list[ConfigProblem]:
    """Every value that a config may not have, as problems of `file`."""
    details = error.errors(include_url=False)
    places = [place(detail) for detail in details]
    return [
        ConfigProblem(file, dotted(where), reason(detail, where))
        for detail, where in zip(details, places, strict=True)
        # pydantic calls a list of wrong items too short as well.
        if not (detail["type"] == "too_short" and any(_below(other, where) for other in places))
    ]


def place(detail: ErrorDetails) -> Place:
    """Where in the file an error is, as keys and list indices."""
    return tuple(part for part in detail["loc"] if part != "[key]")


def dotted(where: Place) -> str:
    """`("model", "adapters", 0, "name")` as `model.adapters[0].name`."""
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in where)
    return key.removeprefix(".")


def printable(key: str) -> str:
    """`key` as it is, or escaped where it would garble a line of text."""
    return key if key.isprintable() else ascii(key)[1:-1]


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to `word`, upper case or lower; None where none is near."""
    by_lower = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower(), list(by_lower), n=1)
    return by_lower[nearest[0]] if nearest else None


def reason(detail: ErrorDetails, where: Place) -> str:
    """One error in plain words: what it must be, what it is, and where useful what to do."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "missing":
        return f"is missing{_purpose(where)}"
    if kind == "extra_forbidden":
        return _unknown_key(where)
    if kind in BOUNDS:
        limit, words = BOUNDS[kind]
        return f"must be {words} {context[limit]}{_but_is(value)}"
    if kind == "literal_error":
        return _not_an_option(value, context["expected"])
    if kind == "string_pattern_mismatch":
        return f"must be {PATTERN_WORDS[context['pattern']]}"
    if kind in WANTED and detail["loc"][-1:] == ("[key]",):
        return f"the key must be {WANTED[kind]}, not {kind_of(value)}; put it in quotes"
    if kind in WANTED:
        return f"must be {WANTED[kind]}, not {kind_of(value)}{_remedy(kind, value, where)}"
    if kind == "invalid_key":
        return "the key must be text; put it in quotes"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "string_too_long":
        return f"must have at most {context['max_length']} characters, not {len(value)}"
    if kind == "too_short":
        return "must have at least one entry"
    if kind == "finite_number":
        return "must be a finite number"
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_unicode":
        return "holds characters that are no valid text"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def kind_of(value: object) -> str:
    """What a YAML value is, without showing it."""
    for types, words in (
        (type(None), "empty"),
        (bool, "true or false"),
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (str, "text"),
        (list, "a list"),
        (dict, "a section of keys"),
    ):
        if isinstance(value, types):
            return words
    return "a special YAML type"


def _below(inner: Place, outer: Place) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _section_at(where: Place) -> type[Section] | None:
    """The section of the schema that a place is, list indices aside."""
    section: type[Section] | None = ClusterConfig
    for part in where:
        if isinstance(part, str) and section is not None:
            field = section.model_fields.get(part)
            section = section_of(field.annotation) if field else None
    return section


def _purpose(where: Place) -> str:
    section, name = _section_at(where[:-1]), where[-1]
    field = section.model_fields.get(str(name)) if section else None
    return f": {field.description}" if field and field.description else ""


def _unknown_key(where: Place) -> str:
    section, name = _section_at(where[:-1]), where[-1]
    known = list(section.model_fields) if section else []
    if nearest := did_you_mean(str(name), known):
        return f"there is no such key; did you mean `{nearest}`?"
    return f"there is no such key; the keys here are {', '.join(known)}"


def _not_an_option(value: object, expected: str) -> str:
    options = re.findall(r"[^\s',]+", expected.replace(" or ", " "))
    reason = f"must be one of {', '.join(options)}" if len(options) > 1 else f"must be {options[0]}"
    if isinstance(value, str) and (nearest := did_you_mean(value, options)):
        reason += f"; did you mean `{nearest}`?"
    return reason


def _but_is(value: Any) -> str:
    # A number may be too long to print (ValueError), or to read.
    if isinstance(value, float) or abs(value) < 10**15:
        return f", not {value}"
    return ""


def _remedy(kind: str, value: object, where: Place) -> str:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str):
        return "; write it without quotes" if re.fullmatch(UNQUOTED, value) else ""
    if value is None:
        return "; give it a value, or remove the line"
    if kind == "model_type" and (section := _section_at(where)):
        return f"; its keys are {', '.join(section.model_fields)}"
    return ""
