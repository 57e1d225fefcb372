"""The forward pass for sampling: merged weights, a static key-value cache, many sequences at once.

Row invariance. A row's result must not depend on what else is in the batch. On the CPU with one thread, matrix
products have that property from four rows on, so linear inputs are padded to a multiple of `ROW_MULTIPLE` rows and the
queries of one attention product to one of `QUERY_MULTIPLE`. Then prefilling a token and decoding it give the same bits,
and keys kept from an earlier request can replace computed ones. `tests/engine/test_loop.py` checks it on the machine
at hand.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from retool.engine.model.config import ModelConfig
from retool.engine.model.lora import Adapter, merge_all
from retool.engine.model.rotary import rotary_tables, rotate
from retool.engine.model.weights import ATTENTION_LINEARS, UNEMBED, BaseWeights, LayerWeights, linear_name
from retool.engine.types import EngineError

ROW_MULTIPLE = 8
QUERY_MULTIPLE = 4
LENGTH_MULTIPLE = 64


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def cache_length(max_tokens: int) -> int:
    """Positions to allocate for `max_tokens`: at least one more, where padding is written."""
    return round_up(max_tokens + 1, LENGTH_MULTIPLE)


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    input_norm: Tensor
    post_attention_norm: Tensor
    qk_norm: Tensor | None


class KeyValueCache:
    """Keys and values of up to `rows` sequences: (layers, rows + 1, kv heads, length, head_dim) each.

    The batch is always rows 0..n-1. The extra row behind them serves requests for prompt logprobs.
    """

    def __init__(
        self, config: ModelConfig, rows: int, length: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.rows = rows
        shape = (config.num_layers, rows + 1, config.num_kv_heads, cache_length(length), config.head_dim)
        _require_memory(2 * math.prod(shape) * dtype.itemsize, rows, length, device)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def length(self) -> int:
        return self.keys.shape[3]

    def extract(self, row: int, length: int) -> Tensor:
        """A copy of the first `length` positions of a row: (2, layers, kv heads, length, head_dim)."""
        return torch.stack((self.keys[:, row, :, :length], self.values[:, row, :, :length]))

    def insert(self, row: int, stored: Tensor) -> None:
        """Writes what `extract` returned to the start of a row."""
        self.keys[:, row, :, : stored.shape[3]] = stored[0]
        self.values[:, row, :, : stored.shape[3]] = stored[1]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one row to another."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


def _require_memory(needed: int, rows: int, length: int, device: torch.device) -> None:
    """Refuses a cache that would take over half of the machine's memory, before the system kills the process."""
    if device.type != "cpu":
        return
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present / 2:
        raise EngineError(
            "out_of_memory",
            f"A key-value cache of {rows} rows of {length} tokens takes {needed / 2**30:.1f} GiB of this machine's "
            f"{present / 2**30:.1f}. Lower model.engine.max_seq_len or max_batch_rows.",
        )


class CachedModel:
    """A model with one adapter merged in, for sampling."""

    def __init__(self, weights: BaseWeights, adapter: Adapter | None, *, dtype: torch.dtype, max_length: int) -> None:
        self.config = weights.config
        self.dtype = dtype
        device = weights.embedding.device
        merged = merge_all(weights, adapter, dtype)
        self._embedding = weights.embedding.to(dtype)
        self._unembed = merged(UNEMBED)
        self._final_norm = weights.final_norm.to(dtype)
        self._rotary = rotary_tables(self.config, cache_length(max_length), device=device, dtype=dtype)
        self._layers = []
        for index, layer in enumerate(weights.layers):

            def fused(*linears: str, index: int = index) -> Tensor:
                return torch.cat([merged(linear_name(index, linear)) for linear in linears])

            biases = {name: bias.to(dtype) for name, bias in layer.biases.items()}
            attention_bias = [biases[name] for name in ATTENTION_LINEARS[:3] if name in biases]
            self._layers.append(
                _Layer(
                    qkv=fused("q_proj", "k_proj", "v_proj"),
                    qkv_bias=torch.cat(attention_bias) if len(attention_bias) == 3 else None,
                    output=fused("o_proj"),
                    output_bias=biases.get("o_proj"),
                    gate_up=fused("gate_proj", "up_proj"),
                    down=fused("down_proj"),
                    input_norm=layer.input_norm.to(dtype),
                    post_attention_norm=layer.post_attention_norm.to(dtype),
                    qk_norm=self._qk_norm(layer, dtype),
                )
            )

    def _qk_norm(self, layer: LayerWeights, dtype: torch.dtype) -> Tensor | None:
        """The norms' weights of all query heads, then of all key heads."""
        if layer.q_norm is None or layer.k_norm is None:
            return None
        heads = (layer.q_norm.expand(self.config.num_heads, -1), layer.k_norm.expand(self.config.num_kv_heads, -1))
        return torch.cat(heads).to(dtype)

    @torch.inference_mode()
    def hidden(
        self, cache: KeyValueCache, first_row: int, tokens: Tensor, starts: Tensor, counts: Sequence[int]
    ) -> Tensor:
        """Feeds `tokens` (n, width), right-padded, to cache rows first_row..first_row+n-1.

        Row i holds `counts[i]` real tokens at positions starts[i], starts[i]+1, ...; keys and values of padding are
        written behind them, where nothing reads them before they are overwritten.
        Returns the final hidden states (n, width, hidden).
        """
        batch, width = tokens.shape
        positions = (starts[:, None] + torch.arange(width, device=tokens.device)).clamp_(max=cache.length - 1)
        context = round_up(int((starts + torch.tensor(counts, device=tokens.device)).max()), LENGTH_MULTIPLE)
        context = min(context, cache.length)
        cos, sin = self._rotary[0][positions].unsqueeze(2), self._rotary[1][positions].unsqueeze(2)
        bias = self._bias(positions, context)
        rows = torch.arange(first_row, first_row + batch, device=tokens.device)[:, None]
        flat = batch * width
        x = F.embedding(tokens.reshape(-1), self._embedding)
        x = F.pad(x, (0, 0, 0, round_up(flat, ROW_MULTIPLE) - flat))
        size, eps = (self.config.hidden_size,), self.config.rms_norm_eps
        for index, layer in enumerate(self._layers):
            normed = F.rms_norm(x, size, layer.input_norm, eps)
            qkv = F.linear(normed, layer.qkv, layer.qkv_bias)[:flat].view(batch, width, -1, self.config.head_dim)
            attended = self._attend(layer, index, qkv, cache, rows, positions, cos, sin, bias)
            attended = F.pad(attended.reshape(flat, -1), (0, 0, 0, x.shape[0] - flat))
            x = x + F.linear(attended, layer.output, layer.output_bias)
            gate, up = F.linear(F.rms_norm(x, size, layer.post_attention_norm, eps), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.rms_norm(x, size, self._final_norm, eps)[:flat].view(batch, width, -1)

    def _attend(
        self,
        layer: _Layer,
        index: int,
        qkv: Tensor,
        cache: KeyValueCache,
        rows: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Attention of (batch, width) new tokens over their rows' cache; returns (batch, width, heads * head_dim)."""
        config = self.config
        batch, width = positions.shape
        kv, repeats, dim = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
        qk, v = torch.split(qkv, [config.num_heads + kv, kv], dim=2)
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (dim,), None, config.rms_norm_eps) * layer.qk_norm
        q, k = torch.split(rotate(qk, cos, sin), [config.num_heads, kv], dim=2)
        cache.keys[index][rows, :, positions] = k
        cache.values[index][rows, :, positions] = v
        first, context = int(rows[0, 0]), bias.shape[-1]
        keys = cache.keys[index, first : first + batch, :, :context]
        values = cache.values[index, first : first + batch, :, :context]
        # One product per key head: its queries (repeats x width) are the rows, padded for row invariance.
        queries = repeats * width
        q = q.reshape(batch, width, kv, repeats, dim).permute(0, 2, 3, 1, 4).reshape(batch, kv, queries, dim)
        q = F.pad(q * dim**-0.5, (0, 0, 0, bias.shape[2] - queries))
        scores = torch.matmul(q, keys.transpose(2, 3)).add_(bias)
        out = torch.matmul(torch.softmax(scores, dim=-1), values)[:, :, :queries]
        out = out.view(batch, kv, repeats, width, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(batch, width, -1)

    def _bias(self, positions: Tensor, context: int) -> Tensor:
        """0 where a query may look and -inf where not: (batch, 1, padded queries of one key head, context)."""
        repeats = self.config.num_heads // self.config.num_kv_heads
        forbidden = torch.arange(context, device=positions.device) > positions[:, :, None]
        bias = torch.zeros(forbidden.shape, dtype=self.dtype, device=positions.device)
        bias = bias.masked_fill_(forbidden, float("-inf")).repeat(1, repeats, 1)
        queries = bias.shape[1]
        return F.pad(bias, (0, 0, 0, round_up(queries, QUERY_MULTIPLE) - queries))[:, None]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """(n, hidden) -> (n, vocab) in float32."""
        rows = hidden.shape[0]
        padded = F.pad(hidden, (0, 0, 0, round_up(rows, ROW_MULTIPLE) - rows))
        return F.linear(padded, self._unembed)[:rows].float()
