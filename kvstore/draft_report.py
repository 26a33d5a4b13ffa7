"""What a draft worker says about itself, once a heartbeat."""

from typing import Annotated

import msgspec
from msgspec import Meta

from kvstore.report_types import PROTOCOL, Count, Ratio, Seconds, Text, Word


class NgramReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft worker says about the fleet's n-grams. Counts run since its start.

    Attributes:
        tokens: In its index.
        documents: In its index.
        held_bytes: Memory of the index, full or not.
        corpus_tokens: Of operators' corpora.
        lookups: In the index.
        hits: Of those, that found something.
        evicted_tokens: Given up for new ones.
        connected: Whether it exchanges texts with the others now.
        published: Texts given to the others.
        received: Texts taken from them.
        lost: Own texts the others will not see, and batches of others that never came.
        garbage: Entries that could not be believed.
        delay_s: From the end of the latest text received to its being there, seconds.
        gates_closed: Sources that are left alone now because their drafts did not pay.
    """

    tokens: Count
    documents: Count
    held_bytes: Count
    corpus_tokens: Count
    lookups: Count
    hits: Count
    evicted_tokens: Count
    connected: bool
    published: Count
    received: Count
    lost: Count
    garbage: Count
    delay_s: Seconds
    gates_closed: Count


class DraftModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft worker says about its model. Counts run since its start.

    Attributes:
        name: Folder or hub id.
        places: Sequences that it drafts at once.
        running: Of these, in use.
        asked: Asks that wanted tokens of it.
        ready: Of those, answered in full at once, because it had run ahead.
        followed: Times a text went on along what it had generated, bonus token included.
        branched: Along a prepared rejection.
        restarted: A way that was not prepared.
        generated: Tokens, prepared rejections included.
        step_s: Usual time of one of its steps, seconds.
        busy_ratio: Part of the time since the last report in which it computed, 0-1.
    """

    name: Text
    places: Count
    running: Count
    asked: Count
    ready: Count
    branched: Count
    restarted: Count
    followed: Count = 0
    generated: Count
    step_s: Seconds
    busy_ratio: Ratio


class DraftWorkerReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="draft"):
    """What a draft worker says about itself. Counts run since its start.

    Attributes:
        endpoint: `tcp://host:port`, where verifiers ask.
        protocols: Versions of the messages that it can read and write.
        kinds: Draft kinds of the config, in the order in which it tries them.
        tokenizer_fingerprint: Verifiers ask only workers whose token ids mean the same.
        vocab_size: Tokens; it drafts none outside.
        sessions: Whose contexts it holds now.
        context_tokens: Tokens of those contexts.
        asks: What was asked, counted by session.
        drafted_tokens: Sent, whether anybody verified them or not.
        malformed: Messages it dropped, by the check that failed.
        evicted_sessions: Sessions whose contexts it gave up for want of memory.
        busy_ratio: Part of the time since the last report in which it worked, 0-1.
        ngrams: Of kind `ngram_index`; None without it.
        zone: As of a verifier.
        model: Of kind `model`; None without it.
    """

    worker_id: Text
    node_ip: Text
    pid: Count
    endpoint: Text
    protocols: Annotated[list[Count], Meta(min_length=1, max_length=16)]
    kinds: Annotated[list[Word], Meta(max_length=16)]
    tokenizer_fingerprint: Text
    vocab_size: Count
    sessions: Count
    context_tokens: Count
    asks: Count
    drafted_tokens: Count
    malformed: Annotated[dict[Word, Count], Meta(max_length=16)]
    evicted_sessions: Count
    busy_ratio: Ratio
    started_at_s: Seconds
    reported_at_s: Seconds
    ngrams: NgramReport | None = None
    zone: Text = ""
    model: DraftModelReport | None = None
    protocol: int = PROTOCOL
