"""Is this cluster possible, and sensible? One tuple of rules, each a pure function.

A rule is in the file of its subject; each says in one line what must hold.
"""

from configs.checks import drafting, engine_args, hardware, kv, memory, model, places, scaling
from configs.checks.rule import Rule
from configs.errors import ConfigProblem
from configs.facts import Facts
from configs.schema import ClusterConfig

RULES: tuple[Rule, ...] = (
    *model.RULES,
    *drafting.RULES,
    *hardware.RULES,
    *kv.RULES,
    *memory.RULES,
    *engine_args.RULES,
    *places.RULES,
    *scaling.RULES,
)


def check(
    config: ClusterConfig, facts: Facts, file: str, *, secrets: bool = False
) -> list[ConfigProblem]:
    """Everything that keeps a cluster from running as its config says.

    Args:
        config: A config that the schema allows.
        facts: What `configs.facts.gather_facts` found for it.
        file: Named in each problem.
        secrets: Also report secrets that are missing or lie open. For where the cluster
            starts; a laptop or a CI job that checks the file rightly has none of them.

    Returns:
        The problems, each with its key and what to change; empty if all is well.
    """
    rules = (*RULES, places.secrets_are_there) if secrets else RULES
    return [
        ConfigProblem(file, finding.key, finding.reason)
        for rule in rules
        for finding in rule(config, facts)
    ]
