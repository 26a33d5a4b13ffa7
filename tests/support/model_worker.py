"""A draft worker with a real model, in a process of its own, for tests and benchmarks.

    python model_worker.py CONFIG.json

Serves under the config's token; prints its endpoint when the model is there, and then its
counts as a line of JSON for each line that it reads. Ends when nobody writes any more.
"""

import json
import sys
import time
from pathlib import Path

import msgspec

from configs.schema import ClusterConfig
from kvstore.cluster_token import cluster_token
from replicas.draft.drafters import make_drafters
from replicas.draft.model_drafter import make_model
from replicas.draft.service import DraftService
from replicas.draft.worker import service_settings
from replicas.messages import Codec

START_S = 600.0


def main() -> None:
    """Until the other end of stdin is closed."""
    config = ClusterConfig.model_validate_json(Path(sys.argv[1]).read_text())
    split = config.drafting.split
    assert split is not None and split.workers.draft is not None
    target = config.model.source
    settings = service_settings(config, target, "127.0.0.1")
    model = make_model(config, split.workers.draft.source, target, settings.vocab_size)
    assert model is not None
    codec = Codec(cluster_token(config))
    with DraftService(settings, codec, make_drafters(config), model=model) as service:
        assert model.wait_until_ready(START_S), "the draft model did not start"
        replies.write(service.endpoint + "\n")
        replies.flush()
        for _ in sys.stdin:
            stats = msgspec.to_builtins(model.stats())
            stats |= {"held": service.stats(time.monotonic()).sessions}
            replies.write(json.dumps(stats) + "\n")
            replies.flush()


if __name__ == "__main__":
    import os

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is for the log
    main()
    os._exit(0)
