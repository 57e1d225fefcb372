"""What the packaged model `tiny` is made of: tokenizer, chat template, architecture, and how they are written to disk.

`build_tokenizer`, `CHAT_TEMPLATE`, `build_model` (random weights), `write`. `build_tiny.py` trains what this defines.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

MAX_LENGTH = 1024
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<function=code_interpreter>",
    "</function>",
    "<parameter=code>",
    "</parameter>",
    "<tool_response>",
    "</tool_response>",
)
WORD_TOKENS = (
    *("system", "user", "assistant", "print(", "\\boxed{"),
    *("What is ", "Compute ", "Find the ", "Multiply ", "Add ", "Subtract ", "product of ", "sum of ", "difference "),
    *(" times ", " plus ", " minus ", " and ", " by ", " to ", " from "),
)
"""One token each where the model or the template writes them. A question is text from outside: its words are bytes."""

CHAT_TEMPLATE = r"""
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.content is not string and message.content is not none and message.content is defined %}
        {{- raise_exception('The content of a message must be text.') }}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {{- '\n' if content or not loop.first }}
            {{- '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments | items %}
                {%- set text = value if value is string else value | tojson %}
                {{- '<parameter=' + name + '>\n' + text + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role in ('system', 'user') %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- else %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".lstrip()


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and one a special token, piece of a tool call and frequent word: any text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in TOOL_TOKENS + WORD_TOKENS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights from torch's global seed."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        bos_token_id=None,
        dtype="float32",
        **ends,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, top_k=0, **ends)  # type: ignore[no-untyped-call]
    return model


def write(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Weights, configs and tokenizer in the Hugging Face layout, readable by everyone."""
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config_path = out / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every supported transformers version knows
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in out.iterdir():
        path.chmod(0o644)
