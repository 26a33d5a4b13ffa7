"""Who drafted what and what became of it, by source and position."""

from replicas.verifier.draft_accounts import MAX_SOURCES, DraftAccounts, SourceAccount


def test_a_draft_counts_at_each_of_its_positions() -> None:
    """Three tokens with one accepted, one with one, two with none."""
    account = SourceAccount()
    for drafted, accepted in ((3, 1), (1, 1), (2, 0)):
        account.add(drafted, accepted)
    assert account.drafted == [3, 2, 1]
    assert account.accepted == [2, 0, 0]


def test_a_draft_counts_for_who_proposed_it_last() -> None:
    """Nothing counts before it was verified; then it counts for the latest proposal."""
    accounts = DraftAccounts()
    accounts.proposed("a", "worker:model")
    accounts.proposed("a", "local:prompt_lookup")
    accounts.proposed("b", "worker:model")
    assert accounts.by_source == {}
    accounts.verified("a", 2, 1)
    assert accounts.by_source == {"local:prompt_lookup": SourceAccount([1, 1], [1, 0])}
    accounts.verified("b", 1, 0)
    assert accounts.by_source["worker:model"] == SourceAccount([1], [0])


def test_what_nobody_drafted_counts_for_nobody() -> None:
    """No proposal, one without a source, a draft that lost all its tokens, a request that ended."""
    accounts = DraftAccounts()
    accounts.verified("unknown", 3, 3)
    accounts.proposed("a", "")
    accounts.verified("a", 3, 3)
    accounts.proposed("b", "worker:model")
    accounts.verified("b", 0, 0)
    accounts.proposed("c", "worker:model")
    accounts.forget(["c", "never seen"])
    accounts.verified("c", 3, 3)
    assert accounts.by_source == {}


def test_sources_that_are_too_many_share_one_account() -> None:
    """However many names workers give themselves, memory stays bounded and no token is lost."""
    accounts = DraftAccounts()
    for i in range(3 * MAX_SOURCES):
        accounts.proposed("a", f"worker:{i}")
        accounts.verified("a", 1, 0)
    assert len(accounts.by_source) == MAX_SOURCES + 1
    assert accounts.by_source["worker:0"].drafted == [1]
    assert accounts.by_source["other"].drafted == [2 * MAX_SOURCES]
