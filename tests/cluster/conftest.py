"""Settings for all tests of this room."""

from hypothesis import settings

# On a busy machine an example may take as long as it takes.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
