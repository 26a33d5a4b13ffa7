"""Does this node's LMCache server answer? Asked once, before the engine starts.

An engine whose connector finds no server at its start fails. So it is given one only where there
is a server; without, it computes everything until the verifier is started anew. Servers that go
later are no trouble: the connector notices, and comes back with them.
"""

import logging
import time
import urllib.request
from typing import Final

from configs.schema import ClusterConfig

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
POLL_S: Final = 0.5
TIMEOUT_S: Final = 2.0


def lmcache_answers(config: ClusterConfig, patience_s: float = PATIENCE_S) -> bool:
    """Waits until the server is up; False, with a line in the log, if it doesn't come up.

    Args:
        config: The cluster, with `kv.shared`.
        patience_s: How long it is waited for.
    """
    url = f"http://127.0.0.1:{config.ports.lmcache_http}/healthcheck"
    until_s = time.monotonic() + patience_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S):
                return True
        except OSError as error:
            if time.monotonic() > until_s:
                logger.warning("kv shared=off url=%s error=%s", url, error)
                return False
        time.sleep(POLL_S)
