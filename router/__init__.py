"""Which verifier should answer."""
