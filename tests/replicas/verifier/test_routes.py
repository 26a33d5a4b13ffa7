"""A path is served if it stands in the table, and then letter by letter."""

import pytest

from replicas.errors import MethodNotServed, NoSuchRoute
from replicas.verifier.routes import ROUTES, find_route, is_open, methods_of

ODD_SPELLINGS = [
    "//v1/models",
    "/v1//models",
    "/v1/models/",
    "/V1/models",
    "/health/",
    "/health/../v1/models",
    "/health/..;/v1/models",
    "/./health",
    "health",
    "",
    "/",
    "/v1/chat/completions/",
    "/v1/chat/completions\n",
    "/v1/chat/completions?x",
    "*",
]


def test_every_route_is_found_by_its_own_method_and_path() -> None:
    for route in ROUTES:
        assert find_route(route.method, route.path.replace("{model}", "some/adapter")) is route


def test_health_alone_is_open() -> None:
    """Everything else asks for a key, other methods on the same path too."""
    assert [route.path for route in ROUTES if not route.needs_key] == ["/health"]
    assert is_open("GET", "/health")
    assert not is_open("POST", "/health")
    assert not is_open("HEAD", "/health")


@pytest.mark.parametrize("path", ODD_SPELLINGS)
def test_another_spelling_is_another_path(path: str) -> None:
    """No route is reached by a spelling that the table does not have."""
    assert not is_open("GET", path)
    with pytest.raises(NoSuchRoute):
        find_route("GET", path)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
def test_another_method_is_told_the_right_one(method: str) -> None:
    with pytest.raises(MethodNotServed, match="use POST"):
        find_route(method, "/v1/completions")
    assert methods_of("/v1/completions") == ("POST",)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/embeddings", "embeddings"),
        ("/v1/load_lora_adapter", "config"),
        ("/v1/responses/resp_1/cancel", "not stored"),
        ("/metrics", "metrics port"),
        ("/scale_elastic_ep", "not run over this API"),
    ],
)
def test_a_path_that_is_left_out_on_purpose_says_why(path: str, reason: str) -> None:
    with pytest.raises(NoSuchRoute, match=reason):
        find_route("POST", path)
