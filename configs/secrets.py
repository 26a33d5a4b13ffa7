"""Secrets, read by the name a config gives them.

A config names a file or an environment variable; the secret itself never stands in
it. This is the only place in `configs/` that looks at the environment.
"""

import os
from pathlib import Path

from configs.errors import SecretError
from configs.sections.values import SecretRef


def read_secret(ref: SecretRef) -> str:
    """The secret that `ref` names, without surrounding white space.

    Raises:
        SecretError: it is missing, empty or not text, or its file can be read by other
            users of the machine. The message says what to do and never holds the secret.
    """
    if ref.env is not None:
        secret, where = os.environ.get(ref.env), f"environment variable {ref.env}"
        if secret is None:
            raise SecretError(f"{where} is not set")
    else:
        assert ref.file is not None, "SecretRef has exactly one of file and env"
        secret, where = _read_file(ref.file), f"file {ref.file}"
    if not secret.strip():
        raise SecretError(f"{where} is empty")
    return secret.strip()


def _read_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            # A file of another owner that we may read as its group is how Kubernetes hands
            # secrets to a process that is not root; a file of our own has no such reason.
            ours = status.st_uid == os.geteuid()
            if status.st_mode & (0o077 if ours else 0o007):
                allowed = "600" if ours else "640"
                raise SecretError(
                    f"file {path} can be read by other users; run `chmod {allowed} {path}`"
                )
            return file.read()
    except UnicodeDecodeError:
        raise SecretError(f"file {path} does not hold text") from None
    except OSError as error:
        raise SecretError(f"file {path} cannot be read: {error.strerror}") from None
