"""Texts tokenized turn by turn have the tokens of the whole."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import SPECIAL_TOKENS, make_tiny_llama
from tokenizers import Tokenizer, models, pre_tokenizers

from router.segments import Segments

texts = st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "<|im_", "word " * 20, "x", " ", "\n"])
    | st.text(max_size=80),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer with three special tokens, a token a byte."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", layers=1)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def segments(backend: Tokenizer) -> Segments:
    return Segments(backend, max_tokens=2000)


@given(texts)
@settings(deadline=None)
def test_pieces_have_the_tokens_of_the_whole(
    segments: Segments, backend: Tokenizer, text: str
) -> None:
    """Seen before or not, and within the bound."""
    whole = backend.encode(text, add_special_tokens=False).ids
    assert segments.encode(text).tolist() == whole
    assert segments.encode(text).tolist() == whole
    assert len(segments) <= 2000
    assert len(segments) == sum(map(len, segments._known.values()))


def test_the_models_own_tokenizer_suits(smollm2: Path) -> None:
    """So that its conversations are fast."""
    backend = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    segments = Segments(backend)
    assert segments.suits
    chat = "".join(f"<|im_start|>user\nQuestion {n}, à propos?<|im_end|>\n" for n in range(50))
    assert segments.encode(chat).tolist() == backend.encode(chat, add_special_tokens=False).ids


def test_a_tokenizer_that_treats_beginnings_differently_does_not_suit() -> None:
    """A space put before the first word only would come before each piece."""
    backend = Tokenizer(models.BPE({"▁": 0, "a": 1, "<s>": 2}, [], unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.add_special_tokens(["<s>"])
    assert not Segments(backend).suits


def test_without_special_tokens_there_are_no_pieces() -> None:
    """The text is tokenized as a whole."""
    assert not Segments(Tokenizer(models.BPE({"a": 0}, []))).suits
