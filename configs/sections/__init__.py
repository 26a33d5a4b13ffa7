"""The sections of a cluster's config: every knob once, with unit, range, default and why."""
