"""Of what reports are made: fields that are checked when they are read."""

from typing import Annotated, Final

from msgspec import Meta

PROTOCOL: Final = 1
"""One more whenever an older reader would misunderstand a report."""

Text = Annotated[str, Meta(max_length=256)]
Word = Annotated[str, Meta(max_length=32)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
ByPosition = Annotated[list[Count], Meta(max_length=64)]
Counts = Annotated[dict[Word, Count], Meta(max_length=16)]
