"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W_eff = W + (alpha / r) B A.

A is drawn uniformly from +-1/sqrt(in_features) (the default of PEFT), B starts at zero. alpha is 32, as PEFT-based
training services use it, so that a learning rate means the same at every rank.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from retool.engine.model.weights import ATTENTION_LINEARS, MLP_LINEARS, UNEMBED, BaseWeights
from retool.engine.types import LoraSpec

LORA_ALPHA = 32.0


@dataclass(frozen=True)
class LoraPair:
    """`a` of shape (r, in), `b` of shape (out, r)."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class Adapter:
    """The trainable pairs of one run, by the full name of the matrix they belong to."""

    spec: LoraSpec
    pairs: dict[str, LoraPair]

    @property
    def scale(self) -> float:
        return LORA_ALPHA / self.spec.rank

    def parameters(self) -> list[Tensor]:
        """All trainable tensors in a fixed order."""
        return [tensor for pair in self.pairs.values() for tensor in (pair.a, pair.b)]

    def frozen_copy(self) -> "Adapter":
        """Detached clones of the current values, for sampling while training goes on."""
        return Adapter(
            self.spec,
            {name: LoraPair(pair.a.detach().clone(), pair.b.detach().clone()) for name, pair in self.pairs.items()},
        )


def target_linears(spec: LoraSpec) -> tuple[str, ...]:
    """The linear names that `spec` trains."""
    targets: tuple[str, ...] = ()
    if spec.train_attn:
        targets += ATTENTION_LINEARS
    if spec.train_mlp:
        targets += MLP_LINEARS
    if spec.train_unembed:
        targets += (UNEMBED,)
    return targets


def new_adapter(shapes: Mapping[str, tuple[int, int]], spec: LoraSpec, device: torch.device) -> Adapter:
    """A fresh adapter for matrices of these (out, in), equal to the base model, initialised from `spec.seed` alone."""
    generator = torch.Generator().manual_seed(spec.seed)
    pairs = {}
    for name, (out_features, in_features) in shapes.items():
        bound = 1.0 / math.sqrt(in_features)
        a = (torch.rand(spec.rank, in_features, generator=generator) * 2 - 1) * bound
        pairs[name] = LoraPair(
            a.to(device, torch.float32).requires_grad_(),
            torch.zeros(out_features, spec.rank, device=device, requires_grad=True),
        )
    return Adapter(spec, pairs)


def merged_weight(weight: Tensor, adapter: Adapter | None, name: str) -> Tensor:
    """W_eff for one matrix, differentiable with respect to the adapter."""
    pair = adapter.pairs.get(name) if adapter is not None else None
    if pair is None or adapter is None:
        return weight
    return torch.addmm(weight, pair.b.to(weight.dtype), pair.a.to(weight.dtype), alpha=adapter.scale)


def apply_linear(x: Tensor, weight: Tensor, bias: Tensor | None, adapter: Adapter | None, name: str) -> Tensor:
    """x W_eff^T + bias for training, the cheaper of two equal ways.

    Merging costs a full weight gradient (in x out a token), the low-rank path three products with A and B.
    """
    pair = adapter.pairs.get(name) if adapter is not None else None
    if pair is None or adapter is None:
        return torch.nn.functional.linear(x, weight, bias)
    out_features, in_features = weight.shape
    if 3 * adapter.spec.rank * (in_features + out_features) >= in_features * out_features:
        return torch.nn.functional.linear(x, merged_weight(weight, adapter, name), bias)
    low_rank = torch.nn.functional.linear(torch.nn.functional.linear(x, pair.a.to(x.dtype)), pair.b.to(x.dtype))
    return torch.add(torch.nn.functional.linear(x, weight, bias), low_rank, alpha=adapter.scale)


def merge_all(weights: BaseWeights, adapter: Adapter | None, dtype: torch.dtype) -> Callable[[str], Tensor]:
    """A lookup from a matrix's full name to its merged value in `dtype`, for sampling."""
    merged: Mapping[str, Tensor] = {
        name: merged_weight(weight, adapter, name).detach().to(dtype) for name, weight in weights.named_linears()
    }
    return merged.__getitem__
