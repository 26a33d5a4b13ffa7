"""Weights small enough to make in a test, in the layouts of real ones."""

import json
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tiny_llama(
    folder: Path,
    *,
    heads: int = 8,
    kv_heads: int = 4,
    head_dim: int = 32,
    layers: int = 2,
    vocab_size: int = 512,
    max_context: int = 1024,
    seed: int = 0,
    logit_scale: float = 1.0,
    tokenizer: bool = True,
) -> Path:
    """Write a random float32 Llama whose tokenizer takes any text, a token a byte.

    Its answers are nonsense, but always the same nonsense. `vocab_size` is at least 259, or
    anything for a model without a tokenizer. A larger `logit_scale` makes it surer of itself.
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    hidden, intermediate = heads * head_dim, 2 * heads * head_dim
    rows_columns = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_heads * head_dim, hidden),
        "self_attn.v_proj": (kv_heads * head_dim, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    weights = {
        "model.embed_tokens.weight": normal(vocab_size, hidden),
        "lm_head.weight": logit_scale * normal(vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, shape in rows_columns.items():
            weights[f"{prefix}.{name}.weight"] = normal(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = torch.ones(hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **tokens,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(tokens))
    if tokenizer:
        _write_byte_tokenizer(folder, vocab_size)
    return folder


def _write_byte_tokenizer(folder: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = SPECIAL_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet())
    # No text becomes one of these, but the random model says them.
    tokens += [f"<{i}>" for i in range(len(tokens), vocab_size)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make_random_lora(folder: Path, base: Path, *, rank: int = 8, seed: int = 0) -> Path:
    """Write a random LoRA adapter, in peft's layout, for the Llama in `base`.

    It adds to each query and value projection a matrix about as large as the projection
    itself, so that greedy answers are plainly others.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    targets = ["q_proj", "v_proj"]
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    with safe_open(base / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            if name.split(".")[-2] not in targets:
                continue
            weight = file.get_tensor(name).float()
            rows, columns = weight.shape
            a = torch.randn(rank, columns, generator=generator)
            b = torch.randn(rows, rank, generator=generator)
            b *= weight.norm() / (b @ a).norm()
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            weights[f"{prefix}.lora_A.weight"] = a
            weights[f"{prefix}.lora_B.weight"] = b
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
