"""What a verifier serves over HTTP, and what of vLLM's app it does not.

One table of served routes. vLLM's app has many more: they change the engine, show
one tenant what others do, or make no sense behind a router. A path that is not in
the table is 404, however it is spelled.
"""

from dataclasses import dataclass
from typing import Literal

from replicas.errors import MethodNotServed, NoSuchRoute

BodyKind = Literal[
    "chat", "completion", "responses", "messages", "count_tokens", "tokenize", "detokenize"
]

GENERATING: frozenset[BodyKind] = frozenset({"chat", "completion", "responses", "messages"})
"""Bodies that reach the engine, and so carry a cache salt."""


@dataclass(frozen=True)
class Route:
    """One path that is served.

    A path that ends in `{model}` stands for every path that goes on from there.
    """

    method: str
    path: str
    what: str
    body: BodyKind | None = None
    needs_key: bool = True

    def matches(self, path: str) -> bool:
        """Whether this is the route of `path`, letter by letter."""
        if self.path.endswith("{model}"):
            start = self.path.removesuffix("{model}")
            return path.startswith(start) and len(path) > len(start)
        return path == self.path


ROUTES = (
    Route("GET", "/health", "whether the engine lives", needs_key=False),
    Route("GET", "/version", "vLLM's version"),
    Route("GET", "/v1/models", "the model and its adapters"),
    Route("GET", "/v1/models/{model}", "one of them"),
    Route("POST", "/v1/chat/completions", "OpenAI chat completions", "chat"),
    Route("POST", "/v1/completions", "OpenAI completions", "completion"),
    Route("POST", "/v1/responses", "OpenAI responses, without stored state", "responses"),
    Route("POST", "/v1/messages", "Anthropic messages", "messages"),
    Route("POST", "/v1/messages/count_tokens", "Anthropic token counting", "count_tokens"),
    Route("POST", "/tokenize", "token ids of a text or a conversation", "tokenize"),
    Route("POST", "/detokenize", "text of token ids", "detokenize"),
)

_TEXT_ONLY = "This server generates text; it makes no embeddings, scores or speech."
_CONFIG_ONLY = "Adapters are named in the cluster's config and loaded at start."
_OPERATORS_ONLY = "The engine is not run over this API."

NOT_SERVED = {
    "/metrics": "Metrics of every replica are on its node's metrics port.",
    "/v1/responses/": "Responses are not stored; send the whole conversation as `input`.",
    "/v1/embeddings": _TEXT_ONLY,
    "/v1/audio/": _TEXT_ONLY,
    "/v1/realtime": _TEXT_ONLY,
    "/pooling": _TEXT_ONLY,
    "/classify": _TEXT_ONLY,
    "/score": _TEXT_ONLY,
    "/v1/score": _TEXT_ONLY,
    "/rerank": _TEXT_ONLY,
    "/v1/rerank": _TEXT_ONLY,
    "/v2/rerank": _TEXT_ONLY,
    "/v1/load_lora_adapter": _CONFIG_ONLY,
    "/v1/unload_lora_adapter": _CONFIG_ONLY,
    "/scale_elastic_ep": _OPERATORS_ONLY,
    "/start_profile": _OPERATORS_ONLY,
    "/stop_profile": _OPERATORS_ONLY,
    "/sleep": _OPERATORS_ONLY,
    "/wake_up": _OPERATORS_ONLY,
    "/pause": _OPERATORS_ONLY,
    "/resume": _OPERATORS_ONLY,
    "/collective_rpc": _OPERATORS_ONLY,
    "/reset_prefix_cache": _OPERATORS_ONLY,
    "/inference/v1/abort_requests": _OPERATORS_ONLY,
}
"""Why a path, or every path that starts with one that ends in a slash, is not served."""

_LONGEST_SHOWN_PATH = 200


def find_route(method: str, path: str) -> Route:
    """The route that serves a request.

    Args:
        method: In capitals.
        path: Decoded, below the root path.

    Raises:
        NoSuchRoute: No route has this path.
        MethodNotServed: One has, with another method.
    """
    for route in ROUTES:
        if route.matches(path) and route.method == method:
            return route
    shown = f"{method} {path[:_LONGEST_SHOWN_PATH]}"
    if methods := methods_of(path):
        raise MethodNotServed(f"{shown} is not served; use {' or '.join(methods)}.")
    raise NoSuchRoute(f"{shown} is not served.{_why_not(path)}")


def is_open(method: str, path: str) -> bool:
    """Whether a request is served without a key."""
    return any(
        route.matches(path) and route.method == method and not route.needs_key for route in ROUTES
    )


def methods_of(path: str) -> tuple[str, ...]:
    """The methods that a path is served with; none where it is not served."""
    return tuple(route.method for route in ROUTES if route.matches(path))


def _why_not(path: str) -> str:
    for start, reason in NOT_SERVED.items():
        if path == start or (start.endswith("/") and path.startswith(start)):
            return f" {reason}"
    return ""
