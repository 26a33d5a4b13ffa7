"""Where a cluster's API is to be found."""

import pytest

from cluster.local import LocalCluster
from configs import parse_config


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:8000"),
        ("0.0.0.0", None, "http://127.0.0.1:8000"),
        ("0.0.0.0", "10.0.0.7:6379", "http://10.0.0.7:8000"),
        ("10.0.0.9", "10.0.0.7:6379", "http://10.0.0.9:8000"),
    ],
)
def test_the_api_is_where_haproxy_listens(host: str, address: str | None, url: str) -> None:
    """On this machine, or beside the head of a Ray cluster that was joined."""
    config = parse_config(
        {
            "model": {"name": "m", "source": "org/model"},
            "ray": {"address": address},
            "ports": {"host": host},
        },
        "test",
    )
    assert LocalCluster(config).url == url
