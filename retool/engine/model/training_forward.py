"""The forward pass for training: whole sequences, right-padded, with autograd through the adapter."""

import torch
from torch import Tensor
from torch.nn import functional as F

from retool.engine.model.lora import Adapter, apply_linear, target_linears
from retool.engine.model.rotary import rotary_tables, rotate
from retool.engine.model.weights import UNEMBED, BaseWeights, LayerWeights, linear_name
from retool.engine.types import LoraSpec


class FusedModel:
    """The model whose forward passes are the engine's own, for training."""

    def __init__(self, weights: BaseWeights, max_length: int) -> None:
        self.weights = weights
        self.device = weights.embedding.device
        self.vocab_size = weights.config.vocab_size
        self._rotary = rotary_tables(weights.config, max_length, device=self.device, dtype=weights.embedding.dtype)

    def target_shapes(self, spec: LoraSpec) -> dict[str, tuple[int, int]]:
        """(out, in) of every matrix that `spec` trains, by full name, in a fixed order."""
        targets = target_linears(spec)
        return {
            name: (weight.shape[0], weight.shape[1])
            for name, weight in self.weights.named_linears()
            if name.rsplit(".", 1)[-1] in targets
        }

    def hidden(self, adapter: Adapter, tokens: Tensor) -> Tensor:
        """Final-norm hidden states of right-padded tokens."""
        return hidden_states(self.weights, adapter, tokens, self._rotary)

    def logits(self, adapter: Adapter, hidden: Tensor) -> Tensor:
        """(n, hidden) -> (n, vocab)."""
        return apply_linear(hidden, self.weights.unembed, None, adapter, UNEMBED)


def hidden_states(weights: BaseWeights, adapter: Adapter | None, tokens: Tensor, rotary: Tensor) -> Tensor:
    """Final-norm hidden states (batch, length, hidden) of right-padded `tokens` (batch, length).

    Padding at the end cannot reach earlier positions, since attention is causal.
    """
    config = weights.config
    length = tokens.shape[1]
    cos, sin = rotary[0, :length], rotary[1, :length]
    x = F.embedding(tokens, weights.embedding)
    for index, layer in enumerate(weights.layers):
        normed = F.rms_norm(x, (config.hidden_size,), layer.input_norm, config.rms_norm_eps)
        x = x + _attention(weights, layer, adapter, index, normed, cos, sin)
        normed = F.rms_norm(x, (config.hidden_size,), layer.post_attention_norm, config.rms_norm_eps)
        x = x + _mlp(layer, adapter, index, normed)
    return F.rms_norm(x, (config.hidden_size,), weights.final_norm, config.rms_norm_eps)


def _linear(layer: LayerWeights, adapter: Adapter | None, index: int, linear: str, x: Tensor) -> Tensor:
    return apply_linear(x, layer.linears[linear], layer.biases.get(linear), adapter, linear_name(index, linear))


def _attention(
    weights: BaseWeights,
    layer: LayerWeights,
    adapter: Adapter | None,
    index: int,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    config = weights.config
    batch, length, _ = x.shape

    def heads(linear: str, norm: Tensor | None) -> Tensor:
        projected = _linear(layer, adapter, index, linear, x).view(batch, length, -1, config.head_dim)
        if norm is not None:
            projected = F.rms_norm(projected, (config.head_dim,), norm, config.rms_norm_eps)
        return projected.transpose(1, 2)

    q = rotate(heads("q_proj", layer.q_norm), cos, sin)
    k = rotate(heads("k_proj", layer.k_norm), cos, sin)
    v = heads("v_proj", None)
    repeats = config.num_heads // config.num_kv_heads
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _linear(layer, adapter, index, "o_proj", attended.transpose(1, 2).reshape(batch, length, -1))


def _mlp(layer: LayerWeights, adapter: Adapter | None, index: int, x: Tensor) -> Tensor:
    gate = F.silu(_linear(layer, adapter, index, "gate_proj", x))
    return _linear(layer, adapter, index, "down_proj", gate * _linear(layer, adapter, index, "up_proj", x))


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """log softmax(logits)[target] in float32: (n, vocab), (n) -> (n)."""
    logits = logits.float()
    return logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=1)
