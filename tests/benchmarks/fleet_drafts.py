"""What it is worth that one node drafts what another has seen.

    make bench-fleet-drafts        QUICK=1 make bench-fleet-drafts

Recurring traffic: code, JSON forms and a manual. Each repetition makes new templates; of each, one
request is answered by the first verifier, and two seconds later another, with another name and
number, is measured on the second. No two prompts are equal, what their answers have in common is
in neither prompt, and prefix caching is off. Plain chat: questions with nothing in common.

Arms, each a line of its own, all running at once: no speculation, vLLM's ngram, split prompt
lookup with sharing off, and the same with the fleet's n-grams, on two verifiers and two draft
workers; the first three have one verifier, because there nothing goes from one to another. The
draft length is the same in all. One request at a time.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from clusters import moved, running
from harness import Bench, Comparison, Metric, console

sys.path.append("tests/support")
from listening import ports_of

from cluster.local import LocalCluster
from configs import ClusterConfig, load_config
from configs.sections.drafting import (
    ColocatedDrafting,
    DraftingConfig,
    DraftWorkerConfig,
    GovernorConfig,
    SplitDrafting,
)

NONE, NGRAM, OFF, FLEET = "no speculation", "vllm ngram", "sharing off", "fleet n-grams"
AGAIN = {NONE: "no speculation again", NGRAM: "vllm ngram again", OFF: "sharing off again"}
RECURRING, CHAT = "recurring", "chat"
DECODE = Metric("output throughput", "tokens/s", higher_is_better=True)
MAX_LENGTH, OUTPUT_TOKENS = 4, 64
FRESH_S = 2.0
THINGS = ("saddle", "pedal", "chain", "brake", "wheel", "bell", "lamp", "pump", "basket", "fork")
FIELDS = ("price", "colour", "weight", "length", "supplier", "warranty", "material", "size")
NAMES = ("Robin", "Kim", "Sam", "Alex", "Noa", "Mika", "Sasha", "Jules", "Luca", "Toni")
CHATS = 3
QUESTIONS = (
    *("Why is the sky blue?", "What should I cook tonight?", "Tell me about the moon."),
    *("How do I learn to swim?", "Who invented the bicycle?", "Is coffee healthy?"),
    *("Write a poem about rain.", "What does a judge do?", "My dog barks at night, help!"),
    *("Explain inflation.", "Which languages are spoken in Peru?", "How old is the universe?"),
    *("Recommend a book on Rome.", "What is jazz?", "Can fish sleep?", "Name a good hobby."),
    *("How are bridges built?", "Why do we dream?", "What is a vaccine?", "Plan a day in Bern."),
    *("Do plants feel pain?", "How does a fridge work?", "What makes bread rise?"),
    *("Tell a short joke.", "Why did dinosaurs die?", "How far is Mars?"),
)
"""No line is asked one of them in two repetitions."""


def arms() -> dict[str, ClusterConfig]:
    """The configs to start, by arm."""
    base = load_config(Path("configs/local.yaml"))
    kv_cache = base.verifiers.kv_cache.model_copy(update={"prefix_caching": False})
    fixed = GovernorConfig(mode="fixed")
    lookup = DraftWorkerConfig(cpus=0)
    fleet = DraftWorkerConfig(cpus=0, replicas=2, kinds=("prompt_lookup", "ngram_index"))
    drafting = {
        NONE: DraftingConfig(),
        NGRAM: DraftingConfig(max_length=MAX_LENGTH, colocated=ColocatedDrafting(method="ngram")),
        OFF: DraftingConfig(
            max_length=MAX_LENGTH, governor=fixed, split=SplitDrafting(workers=lookup)
        ),
        FLEET: DraftingConfig(
            max_length=MAX_LENGTH, governor=fixed, split=SplitDrafting(workers=fleet)
        ),
    }
    configs = {}
    for place, (arm, its_drafting) in enumerate(drafting.items()):
        replicas = 2 if arm == FLEET else 1
        verifiers = base.verifiers.model_copy(
            update={"kv_cache": kv_cache, "replicas": replicas, "cpus": base.verifiers.cpus / 2}
        )
        config = base.model_copy(update={"verifiers": verifiers, "drafting": its_drafting})
        configs[arm] = moved(config, place)
    return configs


def templates(repetition: int) -> list[tuple[str, str]]:
    """Pairs of prompts of one template each: one to be seen, one to be measured. What the two
    answers have in common is in neither prompt.
    """
    generator = random.Random(repetition)
    thing, other = generator.sample(THINGS, 2)
    one, two, three = generator.sample(FIELDS, 3)
    wholes = (
        f"# File {{number}}, for {{name}}\n# A {thing} with its {one}, {two} and {three}, getters "
        f"and setters for each, and __repr__\nclass {thing.title()}:\n"
        f"    def __init__(self, {one}, ",
        f"Order {{number}} of {{name}} as JSON, a {thing} and a {other}, each with its {one}, "
        f'{two}, {three}:\n{{{{"number": {{number}}, "items": [{{{{"item": "{thing}", "{one}":',
        f"Question {{number}}, from {{name}}: how do I mount the {thing} beside the {other}?\n"
        f"Answer of the manual, step by step, with the {one} and the {two}:\n1.",
    )
    pairs = []
    for whole in wholes:
        seen, asked = (
            whole.format(name=generator.choice(NAMES), number=generator.randrange(1_000, 9_999))
            for _ in range(2)
        )
        pairs.append((seen, asked))
    return pairs


def verifier_ports(cluster: LocalCluster) -> list[int]:
    """Of the verifiers' own HTTP servers."""
    ports = cluster.config.ports
    return ports_of("Verifier", ports.replicas_from, ports.replicas_to)


def ask(cluster: LocalCluster, port: int, prompt: str) -> dict[str, Any]:
    """One greedy answer with its token ids."""
    response = httpx.post(
        f"http://127.0.0.1:{port}/v1/completions",
        json={
            "model": cluster.config.model.name,
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        },
        timeout=120,
    )
    response.raise_for_status()
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def overlap(seen: Sequence[int], asked: Sequence[int], n: int = 4) -> float:
    """Part of the n-grams of one text that stand in another, 0-1."""
    known = {tuple(seen[place : place + n]) for place in range(len(seen) - n + 1)}
    grams = [tuple(asked[place : place + n]) for place in range(len(asked) - n + 1)]
    return sum(gram in known for gram in grams) / len(grams)


def main() -> None:
    """Measures and prints; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about 4 minutes")
    parser.add_argument("--repetitions", type=int, help="default 7, quick 1")
    args = parser.parse_args()
    overlaps: list[float] = []
    console.print("  starting four lines side by side")
    with running(arms()) as clusters:
        by_arm = {**clusters, **{again: clusters[arm] for arm, again in AGAIN.items()}}
        ports = {arm: verifier_ports(cluster) for arm, cluster in clusters.items()}

        def measure(arm: str, cell: str, repetition: int) -> dict[str, float]:
            cluster = by_arm[arm]
            its = ports[next(name for name in clusters if clusters[name] is cluster)]
            first, last = its[0], its[-1]
            turn = (repetition + 1) * CHATS % (len(QUESTIONS) - CHATS + 1)
            prompts = list(QUESTIONS[turn : turn + CHATS])
            seen: list[dict[str, Any]] = []
            if cell == RECURRING:
                # An arm that is measured twice meets new templates each time.
                pairs = templates(1_000 * list(by_arm).index(arm) + repetition)
                prompts = [asked for _, asked in pairs]
                if first != last:
                    seen = [ask(cluster, first, prompt) for prompt, _ in pairs]
                    time.sleep(FRESH_S)
            started_s = time.perf_counter()
            answers = [ask(cluster, last, prompt) for prompt in prompts]
            taken_s = time.perf_counter() - started_s
            overlaps.extend(
                overlap(
                    [*before["prompt_token_ids"], *before["token_ids"]],
                    [*answer["prompt_token_ids"], *answer["token_ids"]],
                )
                for before, answer in zip(seen, answers, strict=False)  # often none was seen
            )
            return {DECODE.name: len(answers) * OUTPUT_TOKENS / taken_s}

        for arm in clusters:
            measure(arm, CHAT, -1)
        bench = Bench(
            "fleet-drafts", [NONE, NGRAM, OFF, FLEET, *AGAIN.values()], [RECURRING, CHAT], [DECODE]
        )
        bench.run(measure, args.repetitions or (1 if args.quick else 7))
        bench.finish(
            [
                Comparison(FLEET, NGRAM, AGAIN[NGRAM], DECODE, 1.5),
                Comparison(FLEET, OFF, AGAIN[OFF], DECODE, 1.2),
                Comparison(FLEET, NONE, AGAIN[NONE], DECODE, 0.97),
            ],
            [
                "of the 4-grams of a measured text, the part that stood in the one seen before: "
                f"{sum(overlaps) / len(overlaps):.0%} on average",
                "the first two targets are for recurring traffic, the last is for chat",
            ],
        )


if __name__ == "__main__":
    main()
