"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), rotate-half layout."""

import torch
from torch import Tensor

from retool.engine.model.config import ModelConfig


def rotary_tables(config: ModelConfig, length: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """cos and sin for positions 0..length-1: shape (2, length, head_dim). Angles are computed in float32."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    inverse_frequency = 1.0 / (config.rope_theta ** (half / config.head_dim))
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), inverse_frequency)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin())).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotation to the last dimension of `x`; cos and sin broadcast against it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
