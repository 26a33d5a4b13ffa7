"""The fleet's n-gram index by itself: lookups while it grows, insertion, memory, recall.

    make bench-ngram        QUICK=1 make bench-ngram

Text is made of templates with gaps: Zipf-distributed tokens of a vocabulary of 50,000, nine of
ten documents instances of one of a thousand templates with one token in eight changed, the
others unlike anything. An index that holds exactly as many tokens as the cell says is filled
twice over, so that it evicts, in a process of its own:

    insert rate   tokens/s, nothing else running
    lookup        one at a time, 20 tokens wanted, of contexts that half of the time are known,
                  while another thread inserts without a pause; the time includes Python's call
    growth        resident memory after minus before, over tokens held
    recall        part of the lookups whose match is as long as the longest that a search of
                  every retained token finds
"""

import argparse
import multiprocessing
import threading
import time
from typing import Any

import numpy as np
import psutil
from harness import Bench, Metric

from kvstore.ngram_index import TOKEN_BYTES, IndexSettings, NgramIndex, Tokens

ARM = "index"
INSERT = Metric("insert rate", "tokens/s", higher_is_better=True)
P50 = Metric("lookup p50 while inserting", "us", higher_is_better=False)
P99 = Metric("lookup p99 while inserting", "us", higher_is_better=False)
QUIET_P99 = Metric("lookup p99, nothing else running", "us", higher_is_better=False)
GROWTH = Metric("growth", "bytes/token", higher_is_better=False)
HELD = Metric("arrays", "bytes/token", higher_is_better=False)
RECALL = Metric("recall", "0-1", higher_is_better=True)
HITS = Metric("lookups that found something", "0-1", higher_is_better=True)
METRICS = (INSERT, P50, P99, QUIET_P99, GROWTH, HELD, RECALL, HITS)

VOCABULARY = 50_000
TEMPLATES, DOCUMENT_TOKENS, CHANGED = 1_000, 400, 8
CONTEXT_TOKENS, WANTED = 48, 20
LOOKUPS, RECALL_LOOKUPS = 20_000, 100
DOMAIN = b"d" * 32


class Writer:
    """Documents without end, made before anything is measured."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.templates = [self._zipf(DOCUMENT_TOKENS) for _ in range(TEMPLATES)]

    def _zipf(self, count: int) -> Tokens:
        return np.minimum(self._random.zipf(1.2, count), VOCABULARY - 1).astype(np.int32)

    def document(self) -> Tokens:
        """Nine of ten are an instance of a template."""
        if self._random.random() < 0.1:
            return self._zipf(DOCUMENT_TOKENS)
        document = self.templates[self._random.integers(TEMPLATES)].copy()
        places = self._random.integers(0, DOCUMENT_TOKENS, DOCUMENT_TOKENS // CHANGED)
        document[places] = self._zipf(len(places))
        return document


def measured(tokens: int, seed: int, quick: bool) -> dict[str, float]:
    """All metrics of an index of so many tokens, in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: dict[str, float] = pool.apply(_measure, (tokens, seed, quick))
        return result


def _measure(tokens: int, seed: int, quick: bool) -> dict[str, float]:
    writer = Writer(seed)
    documents = [writer.document() for _ in range(2 * tokens // DOCUMENT_TOKENS)]
    fresh = [writer.document() for _ in range(2_000)]
    contexts = [
        document[place - CONTEXT_TOKENS : place]
        for document in fresh
        for place in writer._random.integers(CONTEXT_TOKENS, DOCUMENT_TOKENS, 4)
    ]
    process = psutil.Process()
    before = process.memory_info().rss
    index = NgramIndex(IndexSettings(int(tokens * TOKEN_BYTES) + 1))
    started_s = time.perf_counter()
    for number, document in enumerate(documents):
        index.add(DOMAIN, document, float(number))
    insert_s = time.perf_counter() - started_s
    grown = process.memory_info().rss - before
    stats = index.stats()
    lookups = LOOKUPS // 4 if quick else LOOKUPS
    quiet = _lookup_us(index, contexts, lookups)
    recall = _recall(index, contexts, RECALL_LOOKUPS // 2 if quick else RECALL_LOOKUPS)
    stop = threading.Event()

    def insert() -> None:
        turn = 0
        while not stop.is_set():
            index.add(DOMAIN, documents[turn % len(documents)], float(turn))
            turn += 1

    inserting = threading.Thread(target=insert)
    inserting.start()
    try:
        busy = _lookup_us(index, contexts, lookups)
    finally:
        stop.set()
        inserting.join()
    after = index.stats()
    return {
        INSERT.name: len(documents) * DOCUMENT_TOKENS / insert_s,
        P50.name: float(np.percentile(busy, 50)),
        P99.name: float(np.percentile(busy, 99)),
        QUIET_P99.name: float(np.percentile(quiet, 99)),
        GROWTH.name: grown / stats.tokens,
        HELD.name: stats.held_bytes / stats.tokens,
        RECALL.name: recall,
        HITS.name: after.hits / after.lookups,
    }


def _lookup_us(index: NgramIndex, contexts: list[Tokens], count: int) -> list[float]:
    taken_us = []
    for turn in range(count):
        context = contexts[turn % len(contexts)]
        started_ns = time.perf_counter_ns()
        index.find(DOMAIN, context, WANTED, 0.0)
        taken_us.append((time.perf_counter_ns() - started_ns) / 1e3)
    return taken_us


def _recall(index: NgramIndex, contexts: list[Tokens], count: int) -> float:
    """Against a search of every retained token, document by document."""
    retained: list[Any] = []
    for text in index.texts(DOMAIN):
        retained += [text, np.array([-1], dtype=np.int32)]  # no context goes across
    whole = np.concatenate(retained)
    longest = IndexSettings(0).longest
    found = possible = 0
    for context in contexts[:count]:
        ends = np.flatnonzero(whole[:-1] == context[-1])
        ends = ends[whole[ends + 1] >= 0]
        matched = min(len(ends), 1)
        while matched and matched < longest:
            longer = ends[ends >= matched]
            longer = longer[whole[longer - matched] == context[-1 - matched]]
            if not len(longer):
                break
            ends, matched = longer, matched + 1
        if matched >= 2:
            possible += 1
            found += index.find(DOMAIN, context, 1, 0.0).matched >= matched
    return found / possible if possible else 1.0


def main() -> None:
    """Runs the cells and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    sizes = {"1 M tokens": 1_000_000, "10 M tokens": 10_000_000}
    if not quick:
        sizes["50 M tokens"] = 50_000_000
    bench = Bench("ngram", [ARM], list(sizes), METRICS)
    bench.run(
        lambda _, cell, repetition: measured(sizes[cell], repetition, quick), 2 if quick else 5
    )
    bench.finish(
        [],
        [
            "targets: lookup p99 under 100 us while inserting, 500,000 tokens/s, 24 bytes/token",
            "expected tokens of an index: its memory over "
            f"{TOKEN_BYTES:.1f} bytes; full ones evict at the rate at which they take in",
        ],
    )


if __name__ == "__main__":
    main()
