"""Drawing tokens: temperature, top-k and top-p (Holtzman et al. 2019, arXiv 1904.09751), one uniform a token.

A sequence's uniforms come from a counter-based generator keyed by (seed, sample index), so that what a request draws
depends on nothing else. Logprobs are those of the untruncated distribution at temperature 1: the policy's own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_UNIFORMS_AT_ONCE = 64
_LARGE_VOCABULARY = 4096
_BLOCK = 256


class UniformStream:
    """Uniform numbers in [0, 1) for one sampled sequence."""

    def __init__(self, seed: int, sample_index: int) -> None:
        key = np.array([seed & (2**64 - 1), sample_index], dtype=np.uint64)
        self._generator = np.random.Generator(np.random.Philox(key=key))
        self._buffer: list[float] = []

    def next(self) -> float:
        if not self._buffer:
            self._buffer = self._generator.random(_UNIFORMS_AT_ONCE).tolist()[::-1]
        return self._buffer.pop()


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How to draw one row. `top_k <= 0` and `top_p >= 1` mean no truncation; `temperature=0` means greedy."""

    temperature: float
    top_p: float
    top_k: int

    @property
    def plain(self) -> bool:
        return self.temperature == 1.0 and self.top_p >= 1.0 and self.top_k <= 0


def draw(logits: Tensor, settings: list[DrawSettings], uniforms: list[float]) -> tuple[list[int], list[float]]:
    """One token and its logprob for each row of `logits` (n, vocab) in float32."""
    logprobs = torch.log_softmax(logits, dim=-1)
    uniform = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
    plain = [index for index, row in enumerate(settings) if row.plain]
    tokens = torch.empty(len(settings), dtype=torch.long, device=logits.device)
    if plain:
        chosen = logprobs if len(plain) == len(settings) else logprobs[plain]
        tokens[plain] = _invert(chosen.exp(), uniform[plain])
    for index, row in enumerate(settings):
        if not row.plain:
            tokens[index] = _draw_truncated(logits[index], row, uniform[index : index + 1])
    picked = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.tolist(), picked.tolist()


def _invert(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The token where the cumulative distribution passes `uniform` times its total."""
    vocab_size = probabilities.shape[-1]
    if vocab_size >= _LARGE_VOCABULARY:
        return _invert_in_blocks(probabilities, uniform)
    cumulative = probabilities.to(torch.float64).cumsum(dim=-1)
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    return token.clamp_(max=vocab_size - 1)


def _invert_in_blocks(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The same in two stages, the block and the token in it, which spares a float64 copy of a large table."""
    rows, vocab_size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -vocab_size % _BLOCK)).view(rows, -1, _BLOCK)
    ends = padded.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    threshold = uniform[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, threshold, right=True).clamp_(max=ends.shape[-1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = padded[torch.arange(rows, device=probabilities.device), block[:, 0]].to(torch.float64).cumsum(dim=-1)
    # A threshold at the very end of a block may lie past its own sum by a rounding: then its last token counts.
    token = torch.searchsorted(inside, threshold - before, right=True).clamp_(max=_BLOCK - 1)
    return (block * _BLOCK + token)[:, 0].clamp_(max=vocab_size - 1)


def _draw_truncated(logits: Tensor, settings: DrawSettings, uniform: Tensor) -> int:
    if settings.temperature == 0.0 or settings.top_k == 1:
        return int(logits.argmax())
    ordered, tokens = torch.sort(logits / settings.temperature, descending=True, stable=True)
    probabilities = torch.softmax(ordered.to(torch.float64), dim=-1)
    if settings.top_k > 0:
        probabilities = probabilities[: settings.top_k]
        probabilities = probabilities / probabilities.sum()
    if settings.top_p < 1.0:
        # The smallest set that reaches top_p: every token whose predecessors have not reached it yet.
        before = probabilities.cumsum(0) - probabilities
        probabilities = probabilities[before < settings.top_p]
    return int(tokens[_invert(probabilities[None], uniform)[0]])
