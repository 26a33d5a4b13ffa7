"""What the token ids of a model mean, as one short string.

A draft model reads and says the target's token ids, so both must mean the same by each. Files of
one family differ in what does not matter for that (templates, merges, how text is split), and so
only the vocabulary itself counts.
"""

import hashlib
import json
from pathlib import Path
from typing import Any


def vocabulary_fingerprint(folder: Path) -> str | None:
    """A SHA-256 (hex) that is equal wherever every token id stands for the same token.

    Returns:
        None where the folder holds no tokenizer.json that says it.
    """
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        entries = {**_tokens(tokenizer["model"]["vocab"]), **_added(tokenizer)}
        config_file = folder / "tokenizer_config.json"
        if config_file.is_file():
            entries |= _added_by_config(json.loads(config_file.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    digest = hashlib.sha256()
    for token_id in sorted(entries):
        digest.update(token_id.to_bytes(8, "little", signed=True))
        token = str(entries[token_id]).encode("utf-8", "surrogatepass")
        digest.update(len(token).to_bytes(8, "little"))
        digest.update(token)
    return digest.hexdigest()


def _tokens(vocabulary: Any) -> dict[int, str]:
    """A mapping from tokens to ids; or a list of tokens with their scores, in the ids' order."""
    if isinstance(vocabulary, dict):
        return {int(token_id): token for token, token_id in vocabulary.items()}
    return {token_id: entry[0] for token_id, entry in enumerate(vocabulary)}


def _added(tokenizer: dict[str, Any]) -> dict[int, str]:
    return {int(entry["id"]): entry["content"] for entry in tokenizer.get("added_tokens") or ()}


def _added_by_config(config: dict[str, Any]) -> dict[int, str]:
    added = config.get("added_tokens_decoder") or {}
    return {int(token_id): entry["content"] for token_id, entry in added.items()}
