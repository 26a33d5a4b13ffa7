"""The fleet's n-grams in one draft worker: what all have seen finished, and operators' corpora.

Texts come in through the exchange's thread, drafts go out on the service's; nothing here waits
for Redis. Two sources are looked at, each through a gate of its own for each domain:

    fleet     texts of the request's own domain: finished here, or told by other workers
    corpus    what operators loaded for this domain, and what they loaded for everybody
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import redis

from configs.schema import ClusterConfig
from configs.sections.drafting import SplitDrafting
from kvstore.corpora import EVERYBODY, Corpus, list_corpora, max_tokens, read_corpus
from kvstore.errors import InvalidRecord
from kvstore.ngram_exchange import ExchangeSettings, ExchangeStats, NgramExchange
from kvstore.ngram_index import IndexSettings, IndexStats, NgramIndex
from kvstore.ngram_records import NgramKeys
from kvstore.redis_client import RedisSettings
from replicas.draft.drafters import NO_GUESS, Guess, Question
from replicas.draft.gate import Gate, Outcome
from replicas.messages import Tokens

logger = logging.getLogger(__name__)

FLEET: Final = "fleet"
CORPUS: Final = "corpus"
WHOLE_CLUSTER: Final = b"cluster"
"""The one domain of `sharing: cluster`; no tenant's has its length."""


@dataclass(frozen=True)
class FleetSettings:
    """What the config says of the fleet's n-grams.

    Attributes:
        sharing: `tenant`: texts are drafted from within their domain; `cluster`: everywhere.
        index: Of the fleet's texts.
        corpora: Of the corpora.
        exchange: With the other workers.
    """

    sharing: Literal["tenant", "cluster"]
    index: IndexSettings
    corpora: IndexSettings
    exchange: ExchangeSettings

    @classmethod
    def of(
        cls, config: ClusterConfig, fingerprint: str, vocab_size: int, worker_id: str
    ) -> "FleetSettings | None":
        """What a config says to one worker; None where it asks for no n-gram index.

        Args:
            config: The cluster's.
            fingerprint: Of the target's tokenizer.
            vocab_size: Tokens of the target's vocabulary.
            worker_id: No other worker has it, nor had it.
        """
        workers = (config.drafting.split or SplitDrafting()).workers
        wanted = workers.ngram
        if "ngram_index" not in workers.kinds or wanted.sharing == "off":
            return None
        longest = wanted.longest_context
        return cls(
            sharing=wanted.sharing,
            index=IndexSettings(wanted.memory_mib << 20, longest=longest, ttl_s=wanted.ttl_s),
            corpora=IndexSettings(  # they never get old
                wanted.corpus_mib << 20, longest=longest, ttl_s=math.inf, half_life_s=math.inf
            ),
            exchange=ExchangeSettings(
                keys=NgramKeys(config.name, fingerprint),
                origin=worker_id,
                vocab_size=vocab_size,
                ttl_s=wanted.ttl_s,
                stream_tokens=wanted.stream_tokens,
            ),
        )


@dataclass(frozen=True)
class FleetStats:
    """What there is and what was done.

    Attributes:
        index: Of the fleet's texts.
        corpus_tokens: Of all corpora.
        corpora_failed: Corpora that could not be read, or had no room.
        exchange: With the other workers.
        gates_closed: Gates that are closed now.
    """

    index: IndexStats
    corpus_tokens: int
    corpora_failed: int
    exchange: ExchangeStats
    gates_closed: int


class FleetIndex:
    """Drafter of kind `ngram_index`, from `start` to `close`.

    Args:
        settings: What the config says.
        server: The cluster's Redis.
        clock: Wall clock, seconds; texts are dated by it.
    """

    kind = "ngram_index"

    def __init__(
        self,
        settings: FleetSettings,
        server: RedisSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._index = NgramIndex(settings.index)
        self._corpora: NgramIndex | None = None
        self._known: tuple[Corpus, ...] = ()
        self._corpora_failed = 0
        self._gate = Gate()
        self._exchange = NgramExchange(
            settings.exchange, server, self._index, self._follow_corpora, clock
        )

    def start(self) -> None:
        """Begin to exchange texts."""
        self._exchange.start()

    def close(self) -> None:
        """Stop; returns when the exchange's thread has ended."""
        self._exchange.close()

    def draft(self, question: Question) -> Guess:
        """The more confident of what the two sources have; see `Drafter.draft`."""
        best, now_s = NO_GUESS, self._clock()
        for source, index, domain in self._places(question.domain):
            if not self._gate.is_open(source, question.domain, question.now_s):
                continue
            found = index.find(domain, question.context, question.wanted, now_s)
            if found.confidence > best.confidence:
                best = Guess(found.tokens, found.confidence, self.kind, source)
        return best

    def learn(self, guess: Guess, domain: bytes, outcome: Outcome, now_s: float) -> None:
        """Opens and closes the gates; see `Drafter.learn`."""
        self._gate.saw(guess.source, domain, outcome, now_s)

    def ended(self, domain: bytes, context: Tokens) -> None:
        """A text is finished: prompt and what the target made of it. Returns at once."""
        shared = self._shared(domain)
        if shared is not None:
            self._exchange.publish(shared, context)

    def stats(self, now_s: float) -> FleetStats:
        """From any thread.

        Args:
            now_s: By the clock of the questions.
        """
        corpora = self._corpora
        return FleetStats(
            index=self._index.stats(),
            corpus_tokens=corpora.stats().tokens if corpora is not None else 0,
            corpora_failed=self._corpora_failed,
            exchange=self._exchange.stats(),
            gates_closed=self._gate.closed(now_s),
        )

    def _shared(self, domain: bytes) -> bytes | None:
        """The domain under which a request's text is kept; None where it is not."""
        if self._settings.sharing == "cluster":
            return WHOLE_CLUSTER
        return domain or None

    def _places(self, domain: bytes) -> list[tuple[str, NgramIndex, bytes]]:
        places: list[tuple[str, NgramIndex, bytes]] = []
        if (shared := self._shared(domain)) is not None:
            places.append((FLEET, self._index, shared))
        if (corpora := self._corpora) is not None:
            places.append((CORPUS, corpora, EVERYBODY))
            if domain:
                places.append((CORPUS, corpora, domain))
        return places

    def _follow_corpora(self, client: redis.Redis) -> None:
        """Makes a new index where the corpora are others than before; lookups see it whole."""
        exchange = self._settings.exchange
        corpora = list_corpora(client, exchange.keys)
        if corpora == self._known:
            return
        index = NgramIndex(self._settings.corpora)
        room = max_tokens(self._settings.corpora.memory_bytes)
        for corpus in corpora:
            room -= corpus.tokens
            try:
                if room < 0:
                    raise InvalidRecord(f"corpus `{corpus.name}` has no room")
                for piece in read_corpus(client, exchange.keys, corpus, exchange.vocab_size):
                    index.add(corpus.domain, piece, corpus.added_at_s)
            except InvalidRecord as error:
                self._corpora_failed += 1
                logger.warning("ngram_corpus=left_out reason=%s", error)
        self._corpora = index if corpora else None
        self._known = corpora
        logger.info("ngram_corpora=%d tokens=%d", len(corpora), index.stats().tokens)
