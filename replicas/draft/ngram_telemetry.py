"""Metrics of a draft worker's n-grams, listed with their units in docs/metrics.md."""

from ray.serve.metrics import Gauge

from kvstore.total_counter import TotalCounter
from replicas.draft.fleet_index import FleetStats


class NgramTelemetry:
    """Sets Prometheus by what the fleet index says of itself."""

    def __init__(self) -> None:
        self._lookups = TotalCounter("paceline_ngram_lookups_total", "Contexts looked up.")
        self._hits = TotalCounter("paceline_ngram_hits_total", "Lookups that found something.")
        self._torn = TotalCounter(
            "paceline_ngram_torn_total", "Lookups whose text was given up meanwhile."
        )
        self._evicted = TotalCounter("paceline_ngram_evicted_tokens_total", "Tokens given up.")
        self._published = TotalCounter(
            "paceline_ngram_published_total", "Texts told to other workers."
        )
        self._received = TotalCounter(
            "paceline_ngram_received_total", "Texts taken from other workers."
        )
        self._lost = TotalCounter(
            "paceline_ngram_lost_total", "Texts or batches that did not get through.", "what"
        )
        self._forgotten = TotalCounter(
            "paceline_ngram_forgotten_total", "Texts of forgotten tenants removed."
        )
        self._failures = TotalCounter(
            "paceline_ngram_exchange_failures_total", "Attempts that Redis did not answer."
        )
        self._tokens = Gauge("paceline_ngram_tokens", description="Tokens in the index.")
        self._bytes = Gauge("paceline_ngram_bytes", description="Memory of the index.")
        self._corpus_tokens = Gauge(
            "paceline_ngram_corpus_tokens", description="Tokens of operators' corpora."
        )
        self._delay = Gauge(
            "paceline_ngram_delay_seconds",
            description="From a text's end to its being here, the latest from elsewhere.",
        )
        self._connected = Gauge(
            "paceline_ngram_connected", description="1 while texts are exchanged, else 0."
        )
        self._gates_closed = Gauge(
            "paceline_ngram_gates_closed",
            description="Sources left alone because their drafts did not pay.",
        )

    def saw(self, stats: FleetStats) -> None:
        """Takes in what was done so far; Ray exports a gauge only while it is set."""
        index, exchange = stats.index, stats.exchange
        self._lookups.reach(index.lookups)
        self._hits.reach(index.hits)
        self._torn.reach(index.torn)
        self._evicted.reach(index.evicted_tokens)
        self._published.reach(exchange.published)
        self._received.reach(exchange.received)
        self._forgotten.reach(exchange.forgotten)
        self._failures.reach(exchange.failures)
        for what, count in (
            ("dropped", exchange.dropped),
            ("twice", exchange.twice),
            ("missing", exchange.missing),
            ("garbage", exchange.garbage),
            ("stream_restart", exchange.restarts),
            ("corpus", stats.corpora_failed),
        ):
            self._lost.reach(count, what)
        self._tokens.set(index.tokens)
        self._bytes.set(index.held_bytes)
        self._corpus_tokens.set(stats.corpus_tokens)
        self._delay.set(exchange.delay_s)
        self._connected.set(exchange.connected)
        self._gates_closed.set(stats.gates_closed)
