"""What values of all sections may be, and how a section is checked."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    model_validator,
)

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,40}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
REDIS_URL_PATTERN = r"^rediss?://[^@?\s]+$"
ADDRESS_PATTERN = r"^[A-Za-z0-9.-]+:[0-9]{1,5}$"
PATTERN_WORDS = {
    NAME_PATTERN: "lower-case letters, digits and dashes, a letter first, at most 41 characters",
    VARIABLE_PATTERN: "the name of an environment variable",
    ADDRESS_PATTERN: "HOST:PORT",
    REDIS_URL_PATTERN: "redis://HOST:PORT or rediss://HOST:PORT; a password stands in "
    "`redis.password`, not in the URL",
}
MAX_TOKENS = 100_000_000  # no context is longer; keeps what is computed from it finite
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Port = Annotated[int, Field(ge=1024, le=65535)]


def _on_disk(path: Path, info: ValidationInfo) -> Path:
    """`path` with `~` expanded, and beside the config file where it is relative.

    `load_config` gives the file's folder as validation context; a section made in
    code has none, and its relative paths stay relative.
    """
    if not str(path).isprintable():
        raise ValueError("a path consists of printable characters")
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home folder for `{path.parts[0]}`") from None
    folder = (info.context or {}).get("folder")
    return Path(os.path.normpath(folder / path)) if folder else path


def _source(source: str, info: ValidationInfo) -> str:
    """`source` as it is, but with a folder (`./x`, `../x`, `~/x`) made a full path."""
    if source.startswith("builtin:"):
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", source.removeprefix("builtin:")):
            raise ValueError("after `builtin:` comes the name of a model, not a path")
        return source
    return str(_on_disk(Path(source), info)) if source.startswith((".", "~", "/")) else source


T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]  # a YAML list
DiskPath = Annotated[Path, Strict(False), AfterValidator(_on_disk)]
Source = Annotated[str, Field(min_length=1), AfterValidator(_source)]


class Section(BaseModel):
    """Frozen, types as written (`"8"` is no number), and a key nobody knows is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True
    )


class SecretRef(Section):
    """Where a secret is kept; the secret itself never stands in a config."""

    # The same as `_exactly_one`, for those who only have the JSON schema.
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "string"}}}
                for name in ("file", "env")
            ]
        }
    )

    file: DiskPath | None = Field(
        None, description="File that holds the secret; surrounding white space is ignored."
    )
    env: str | None = Field(
        None,
        pattern=VARIABLE_PATTERN,
        description="Environment variable that holds the secret.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "SecretRef":
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret is named by exactly one of `file` and `env`")
        return self


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field of this type holds, alone or as the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)
