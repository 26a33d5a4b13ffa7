"""A GGUF file of a Llama model, as the Hugging Face folder that vLLM reads.

transformers can do this too, but reads the file's 98,000 tokens and merges three times over
and keeps a quantization_config that vLLM would trip on. Tested against what it gives.
"""

import json
from pathlib import Path
from typing import Any

# llama.cpp's names of tensors, and Hugging Face's.
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert_gguf(gguf_file: Path, folder: Path) -> None:
    """Write config, bfloat16 weights, tokenizer, chat template and generation config.

    Args:
        gguf_file: A Llama model with a byte-level BPE tokenizer, quantized or not.
        folder: Made here; must not exist.

    Raises:
        ValueError: the file holds another architecture or another kind of tokenizer.
    """
    from gguf import GGUFReader  # Together with torch 2 s to import; only needed here.

    reader = GGUFReader(gguf_file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = facts["general.architecture"], facts["tokenizer.ggml.model"]
    if kind != ("llama", "gpt2"):
        raise ValueError(f"{gguf_file}: architecture and tokenizer are {kind}, not llama and gpt2")

    folder.mkdir()
    config = _config(facts, tied="output.weight" not in {t.name for t in reader.tensors})
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_tokenizer(facts, folder)
    _write_weights(reader.tensors, config, folder / "model.safetensors")


def _config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.embedding_length"] // heads,
        "max_position_embeddings": facts["llama.context_length"],
        "hidden_act": "silu",
        # Stored as float32: 1e-05 would read 9.999999747378752e-06.
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _write_tokenizer(facts: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if facts["tokenizer.ggml.pre"] == "smollm":
        split.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, type_ in zip(tokens, facts["tokenizer.ggml.token_type"], strict=True)
            if type_ == CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
            "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
            "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
            "clean_up_tokenization_spaces": False,
            "model_max_length": facts["llama.context_length"],
        },
    )
    (folder / "chat_template.jinja").write_text(facts["tokenizer.chat_template"])


def _write_weights(tensors: list[Any], config: dict[str, Any], path: Path) -> None:
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    weights = {}
    for tensor in tensors:
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        name = _hugging_face_name(tensor.name)
        if name.endswith("q_proj.weight"):
            values = _unpermute(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = _unpermute(values, config["num_key_value_heads"])
        weights[name] = values.to(torch.bfloat16).contiguous()
    save_file(weights, path, metadata={"format": "pt"})


def _unpermute(weight: Any, heads: int) -> Any:
    """Undo llama.cpp's reordering of query and key rows for its form of rotary embedding.

    It interleaves the two halves of each head (convert_hf_to_gguf.py, LlamaModel.permute).
    """
    rows, columns = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


def _hugging_face_name(gguf_name: str) -> str:
    if gguf_name in TOP_NAMES:
        return TOP_NAMES[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
