"""What a test does where a tool it needs is not there."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """Skips on a laptop, fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)
