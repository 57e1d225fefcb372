"""Any causal language model of `transformers`, through its own modules, with switchable adapters.

Slower than the engine's own forward passes and right for every architecture: nothing is fused or merged, so that
sampling and training compute with the same matrices. Adapters attach to all linear layers of attention (or whatever
mixes tokens), of the MLP, and to the unembedding; experts that a model keeps in one fused tensor are not adapted.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retool.engine.model.lora import Adapter, LoraPair
from retool.engine.model.weights import UNEMBED
from retool.engine.types import EngineError, LoraSpec

_MIXER = re.compile(r"attn|attention|mixer|mamba|conv|delta|ssm")
_ROUTER = re.compile(r"router|(^|\.)gate$|shared_expert_gate$")


class AdaptedLinear(nn.Module):
    """A frozen linear layer and the low-rank product of the adapter that is active, if it has one for this layer."""

    def __init__(self, inner: nn.Module, out_features: int, in_features: int) -> None:
        super().__init__()
        self.inner = inner
        self.out_features = out_features
        self.in_features = in_features
        self.pair: LoraPair | None = None
        self.scale = 0.0

    @property
    def weight(self) -> Tensor:
        """The frozen matrix, for models that look at its type or device."""
        return self.inner.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.inner.bias  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if self.pair is None:
            return out
        low_rank = nn.functional.linear(nn.functional.linear(x, self.pair.a.to(x.dtype)), self.pair.b.to(x.dtype))
        return torch.add(out, low_rank, alpha=self.scale)


class PlainModel:
    """One frozen model. Not thread-safe: `using` switches adapters for whatever is computed inside."""

    def __init__(self, directory: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        """Loads the weights. Raises `EngineError` for what `transformers` cannot load as a causal language model."""
        self.device = device
        self.dtype = dtype
        self.model = _load(directory, device, dtype)
        self.config = self.model.config.get_text_config()
        self.vocab_size = int(self.config.vocab_size)
        self._linears = self._wrap_linears()
        self._head_is_linear = False
        self._head_is_linear = self._check_head()
        self.padding_is_neutral = self._check_padding()

    def target_shapes(self, spec: LoraSpec) -> dict[str, tuple[int, int]]:
        """(out, in) of every matrix that `spec` trains, by full name."""
        wanted = {"attention": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
        return {
            name: (linear.out_features, linear.in_features)
            for name, linear in self._linears.items()
            if wanted[_role(name, self._unembed_name)]
        }

    @contextmanager
    def using(self, adapter: Adapter | None) -> Iterator[None]:
        """Computes with an adapter inside; `None` is the base model."""
        pairs = {} if adapter is None else adapter.pairs
        for name, linear in self._linears.items():
            linear.pair = pairs.get(name)
            linear.scale = 0.0 if adapter is None else adapter.scale
        try:
            yield
        finally:
            for linear in self._linears.values():
                linear.pair = None

    def hidden(self, adapter: Adapter | None, tokens: Tensor) -> Tensor:
        """Hidden states of right-padded tokens, or the logits themselves where more than a product follows.

        Causality keeps padding from what precedes it.
        """
        with self.using(adapter):
            if self._head_is_linear:
                states: Tensor = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
                return states
            out: Tensor = self.model(input_ids=tokens, use_cache=False).logits
            return out

    def logits(self, adapter: Adapter | None, hidden: Tensor) -> Tensor:
        """(n, width) of `hidden` -> (n, vocab)."""
        if not self._head_is_linear:
            return hidden
        with self.using(adapter):
            out: Tensor = self._linears[self._unembed_name](hidden)
            return out

    @torch.no_grad()
    def step(self, tokens: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Any]:  # noqa: ANN401  (a class of transformers)
        """Feeds `tokens` (batch, new), left-padded as `mask` (batch, old + new) says; last logits in fp32 and cache."""
        arguments: dict[str, Any] = {"input_ids": tokens, "past_key_values": cache, "use_cache": True}
        if not bool(mask.all()):
            positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -tokens.shape[1] :]
            arguments |= {"attention_mask": mask, "position_ids": positions}
        out = self.model(**arguments, logits_to_keep=1) if self._keeps_logits else self.model(**arguments)
        return out.logits[:, -1].float(), out.past_key_values

    def _wrap_linears(self) -> dict[str, AdaptedLinear]:
        self._keeps_logits = _accepts(self.model.forward, "logits_to_keep")
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        head = self.model.get_output_embeddings()
        names = {module: name for name, module in self.model.named_modules()}
        self._unembed_name = names.get(head, UNEMBED)
        wrapped = {}
        for name, module in list(self.model.named_modules()):
            shape = _linear_shape(module)
            if shape is None or (module is not head and _ROUTER.search(name)):
                continue
            adapted = AdaptedLinear(module, *shape)
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, adapted)
            wrapped[name] = adapted
        return wrapped

    @torch.no_grad()
    def _check_head(self) -> bool:
        """Whether logits are exactly the product of unembedding and hidden states: no soft cap, no scale."""
        tokens = torch.arange(5, device=self.device)[None] + 2
        if self._unembed_name not in self._linears:
            return False
        expected = self.hidden(None, tokens)
        states = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return bool(torch.equal(self._linears[self._unembed_name](states), expected))

    def _check_padding(self) -> bool:
        """Whether masked padding on the left changes nothing; if it does, only prompts of one length share a batch."""
        short = torch.arange(3, device=self.device)[None] + 2
        long = torch.arange(7, device=self.device)[None] + 2
        padded = torch.cat((torch.cat((torch.zeros_like(long[:, :4]), short), dim=1), long))
        mask = torch.ones_like(padded)
        mask[0, :4] = 0
        try:
            expected = [self.step(tokens, torch.ones_like(tokens), None)[0] for tokens in (short, long)]
            together, _ = self.step(padded, mask, None)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return False
        scale = float(torch.stack([row.abs().max() for row in expected]).max())
        tolerance = 1e-4 if self.dtype is torch.float32 else 3e-2
        return bool((together - torch.cat(expected)).abs().max() <= tolerance * max(scale, 1.0))


def _load(directory: Path, device: torch.device, dtype: torch.dtype) -> Any:  # noqa: ANN401  (a class of transformers)
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, local_files_only=True)
    except (ValueError, KeyError, ImportError, OSError, AttributeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise EngineError(
            "unsupported_model", f"transformers cannot load {directory} as a causal language model: {reason[0]}"
        ) from error
    return model.to(device).eval()


def _linear_shape(module: nn.Module) -> tuple[int, int] | None:
    """(out, in) of a linear layer, `None` for any other module."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    if type(module).__name__ == "Conv1D" and isinstance(module.weight, Tensor):  # of GPT-2: a transposed linear layer
        return module.weight.shape[1], module.weight.shape[0]
    return None


def _role(name: str, unembed: str) -> str:
    if name == unembed:
        return "unembed"
    inside = name.split(".layers.")[-1].split(".h.")[-1]
    return "attention" if _MIXER.search(inside) else "mlp"


def _accepts(function: Callable[..., object], parameter: str) -> bool:
    import inspect

    return parameter in inspect.signature(function).parameters
