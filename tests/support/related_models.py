"""Pairs of a target and a draft with a known relation, without training.

A copy with noise on its weights is right as often as the noise lets it. A copy with more layers
says the same and takes longer: the projections by which the added layers would add to the
residual stream are zero.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
ADDS_TO_THE_STREAM = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
WEIGHTS = "model.safetensors"


def make_noisy_copy(folder: Path, base: Path, *, noise: float, seed: int = 0) -> Path:
    """Write the model in `base` with noise on its attention and MLP weights.

    Args:
        folder: Made here.
        base: A Llama in one safetensors file.
        noise: Standard deviation of the noise, over that of each matrix. 0 is the same model.
        seed: Of the noise.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def noisy(name: str, weight: Any) -> Any:
        if not name.endswith("_proj.weight") or not noise:
            return weight
        drawn = torch.randn(weight.shape, generator=generator)
        spread = weight.float().std()
        return (weight.float() + noise * spread * drawn).to(weight.dtype)

    weights = {name: noisy(name, weight) for name, weight in _read(base).items()}
    return _write(folder, base, weights, {})


def make_padded_copy(folder: Path, base: Path, *, layers: int) -> Path:
    """Write the model in `base` with so many layers in all; the added ones change nothing.

    Args:
        folder: Made here.
        base: A Llama in one safetensors file.
        layers: More than it has.
    """
    weights = _read(base)
    has = 1 + max(int(m[1]) for name in weights if (m := LAYER.fullmatch(name)))
    by_layer = {
        (int(m[1]), m[2]): weight
        for name, weight in weights.items()
        if (m := LAYER.fullmatch(name))
    }
    for layer in range(has, layers):
        for (its_layer, part), weight in by_layer.items():
            if its_layer == layer % has:
                changes_nothing = part in ADDS_TO_THE_STREAM
                weights[f"model.layers.{layer}.{part}"] = (
                    weight.new_zeros(weight.shape) if changes_nothing else weight.clone()
                )
    return _write(folder, base, weights, {"num_hidden_layers": layers})


def _read(base: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(base / WEIGHTS, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _write(folder: Path, base: Path, weights: dict[str, Any], changes: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder
