"""A request's body of which only the beginning is there: JSON, closed where it was cut.

HAProxy shows the router no more of a body than one of its buffers holds. A prefix is at the
beginning, so that is enough: what stands there is kept, the string that was cut included.
"""

import re
from typing import Final

# A whole string, a string that does not end, or what gives JSON its structure. Possessive: each
# byte is looked at once.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\],:]', re.DOTALL)
_HALF_ESCAPE: Final = re.compile(rb"(\\+)(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2})?\Z")
_CLOSED_BY: Final = {b"{": b"}", b"[": b"]"}


def closed(body: bytes) -> bytes | None:
    """The beginning of a JSON object as a whole one; None where it is none.

    Values that are cut are left out, but for strings, of which the beginning stays.
    """
    open_until: list[bytes] = []
    is_key, whole_until = False, 0
    for token in _TOKEN.finditer(body):
        word = token[0]
        if word in _CLOSED_BY:
            open_until.append(_CLOSED_BY[word])
            is_key, whole_until = word == b"{", token.end()
        elif not open_until:
            return None
        elif word in (b"}", b"]"):
            if open_until.pop() != word:
                return None
            is_key, whole_until = False, token.end()
            if not open_until:
                break
        elif word == b",":
            is_key, whole_until = open_until[-1] == b"}", token.start()
        elif word == b":":
            is_key = False
        elif is_key:
            if word == b'"':
                break
        elif word == b'"':
            text = _whole_characters(body[token.end() :])
            return b"".join((body[: token.end()], text, b'"', *reversed(open_until)))
        else:
            whole_until = token.end()
    return b"".join((body[:whole_until], *reversed(open_until))) if whole_until else None


def _whole_characters(text: bytes) -> bytes:
    """The inside of a string without a character, or its escape, that is cut in two."""
    while (half := _HALF_ESCAPE.search(text)) and len(half[1]) % 2:
        text = text[: half.end(1) - 1]
    return text.decode(errors="ignore").encode()
