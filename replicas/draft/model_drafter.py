"""The draft model of a worker, from its config: checked, and ready to be started."""

from pathlib import Path

from configs.schema import ClusterConfig
from configs.vocabulary import vocabulary_fingerprint
from replicas.draft.generation import DraftEngine
from replicas.draft.running_ahead import RunningAhead
from replicas.draft.vllm_engine import VllmDraftEngine, draft_engine_args
from replicas.errors import OtherVocabulary


def make_model(
    config: ClusterConfig, source: str, target_source: str, vocab_size: int
) -> RunningAhead | None:
    """The draft model, not started yet; None where the workers have none.

    Args:
        config: A checked config.
        source: Folder or hub id of the draft model.
        target_source: Of the target.
        vocab_size: Tokens of the target; a model that knows fewer does not start.

    Raises:
        OtherVocabulary: Its token ids mean something else than the target's.
    """
    split = config.drafting.split
    if split is None or "model" not in split.workers.kinds or split.workers.draft is None:
        return None
    check_vocabulary(source, target_source)
    draft, engine_args = split.workers.draft, draft_engine_args(config, source)

    def make_engine() -> DraftEngine:
        engine = VllmDraftEngine(engine_args, sees_others=draft.fan_out > 0)
        if engine.vocab_size < vocab_size:
            engine.close()
            raise OtherVocabulary(source, target_source)
        return engine

    return RunningAhead(
        make_engine,
        draft.lookahead,
        draft.fan_out,
        draft.sessions,
    )


def check_vocabulary(source: str, target_source: str) -> None:
    """Whether two models take each token id for the same token, where both are on this node.

    Raises:
        OtherVocabulary: They do not.
    """
    draft, target = (vocabulary_fingerprint(Path(path)) for path in (source, target_source))
    if draft and target and draft != target:
        raise OtherVocabulary(source, target_source)
