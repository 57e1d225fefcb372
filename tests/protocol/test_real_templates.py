"""Publishers' chat templates: prompt + sampled + continuation are the tokens of the full render."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizer import ADDED, SPECIAL, small_tokenizer

from retool.errors import UserError
from retool.protocol import ChatProtocol, ToolFormat
from retool.protocol.continuation import EMPTY_REASONING_NOTE
from retool.protocol.prompt import tool_schema

TEMPLATES = Path(__file__).parents[2].parent / "shared" / "templates"
FORMATS = {
    "qwen2_5": ToolFormat.HERMES_JSON,
    "qwen3": ToolFormat.HERMES_JSON,
    "qwen3_instruct_2507": ToolFormat.HERMES_JSON,
    "qwen3_5_nothink": ToolFormat.QWEN_XML,
    "qwen3_5_think": ToolFormat.QWEN_XML,
    "qwen3_6": ToolFormat.QWEN_XML,
    "smollm2": ToolFormat.FENCED_PYTHON,
}
LACKS_TOOL_RESPONSE = {"qwen2_5", "smollm2"}
REASONS = {"qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6"}

pytestmark = pytest.mark.skipif(not TEMPLATES.is_dir(), reason="no publishers' templates at hand")

QUESTION = "What is 6*7?\n\nThink."
# What a template would render: no control tokens, no outer white space (some templates trim it).
CONTENT = (
    st.text(alphabet=st.sampled_from("ab1 \n\t(){}'\"\\é漢=:#"), min_size=1, max_size=40)
    .map(lambda text: f"x{text}x")
    .filter(lambda text: not any(token in text for token in (*SPECIAL, *ADDED)))
)


def tokenizer(name: str):
    return small_tokenizer(with_tool_response=name not in LACKS_TOOL_RESPONSE)


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def render(name: str, protocol: ChatProtocol, messages: list[dict], *, thinking: bool, generation: bool = True) -> str:
    system = [{"role": "system", "content": protocol.system_prompt}] if protocol.system_prompt else []
    described = protocol.tool_format is FORMATS.get(name) and name != "smollm2"
    return tokenizer(name).apply_chat_template(
        [*system, {"role": "user", "content": QUESTION}, *messages],
        tools=[tool_schema()] if described else None,
        chat_template=template(name),
        add_generation_prompt=generation,
        enable_thinking=thinking,
        tokenize=False,
    )


def encode(name: str, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(name)(text, add_special_tokens=False)["input_ids"])


def assistant(protocol: ChatProtocol, content: str, code: str, *, reasoning: str | None, structured: bool) -> dict:
    """A turn with a call, as fields that the template renders or as the text itself."""
    if structured:
        call = {"type": "function", "function": {"name": "code_interpreter", "arguments": {"code": code}}}
        message = {"role": "assistant", "content": content, "tool_calls": [call]}
        return message if reasoning is None else {**message, "reasoning_content": reasoning}
    text = f"{content}\n\n{protocol.render_call(code)}"
    return {"role": "assistant", "content": text if reasoning is None else f"<think>\n{reasoning}\n</think>\n\n{text}"}


def check_dialogue(name, protocol, turns, *, thinking):
    """Builds the context turn by turn from tokens, and compares it with one encoding of the whole render."""
    context = protocol.initial_prompt(QUESTION)
    messages: list[dict] = []
    for turn, observation in turns:
        prompt = render(name, protocol, messages, thinking=thinking)
        messages.append(turn)
        upto = render(name, protocol, [*messages], thinking=thinking, generation=False)
        upto = upto[: upto.rindex("<|im_end|>") + len("<|im_end|>")]
        assert upto.startswith(prompt)
        sampled = encode(name, upto[len(prompt) :])
        context += sampled + protocol.continuation(sampled, observation)
        messages.append({"role": "tool", "content": observation})
    assert context == encode(name, render(name, protocol, messages, thinking=thinking))


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_found_from_the_template(name):
    assert ChatProtocol(tokenizer(name), chat_template=template(name)).tool_format is FORMATS[name]


@pytest.mark.parametrize("name", set(FORMATS) - {"qwen3"})
@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(CONTENT, CONTENT, CONTENT), min_size=1, max_size=3))
def test_context_equals_the_full_render(name, turns):
    protocol = ChatProtocol(tokenizer(name), chat_template=template(name))
    structured = name != "smollm2"
    dialogue = [(assistant(protocol, t, c, reasoning=None, structured=structured), o) for t, c, o in turns]
    check_dialogue(name, protocol, dialogue, thinking=False)


@pytest.mark.parametrize("name", REASONS)
@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(CONTENT, CONTENT, CONTENT, CONTENT), min_size=1, max_size=3), structured=st.booleans())
def test_context_with_reasoning_kept_equals_the_full_render(name, turns, structured):
    protocol = ChatProtocol(tokenizer(name), chat_template=template(name), thinking="keep")
    dialogue = [(assistant(protocol, t, c, reasoning=r, structured=structured), o) for r, t, c, o in turns]
    check_dialogue(name, protocol, dialogue, thinking=True)


@pytest.mark.parametrize("name", set(FORMATS) - {"qwen3"})
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_any_format_works_under_any_template_when_chosen(name, tool_format):
    protocol = ChatProtocol(tokenizer(name), chat_template=template(name), tool_format=tool_format)
    turns = [(assistant(protocol, "Go.", "print(1)", reasoning=None, structured=False), "1\n\n2")] * 2
    if protocol.tool_format is FORMATS[name]:
        assert name == "smollm2" or protocol.tool_format.value not in protocol.system_prompt
    else:
        assert protocol.render_call("your Python code") in protocol.system_prompt
    check_dialogue(name, protocol, turns, thinking=False)


def test_qwen3_without_thinking_keeps_the_empty_block_that_its_template_drops():
    protocol = ChatProtocol(tokenizer("qwen3"), chat_template=template("qwen3"))
    assert protocol.notes == (EMPTY_REASONING_NOTE,)
    block = "<think>\n\n</think>\n\n"
    turns = [assistant(protocol, "Go.", f"print({i})", reasoning=None, structured=False) for i in range(2)]
    messages = [turns[0], {"role": "tool", "content": "0"}, turns[1], {"role": "tool", "content": "1"}]
    rendered = render("qwen3", protocol, messages, thinking=False)
    start, end = "<|im_start|>assistant\n", "<|im_end|>"
    assert rendered.count(block) == 1  # in the last generation prompt only
    expected = encode("qwen3", rendered.replace(block, "").replace(start, start + block))
    context = protocol.initial_prompt(QUESTION)
    for turn, observation in zip(turns, ("0", "1"), strict=True):
        sampled = encode("qwen3", turn["content"] + end)
        context += sampled + protocol.continuation(sampled, observation)
    assert context == expected


@pytest.mark.parametrize("name", [*FORMATS, "llama3_1"])
def test_text_only_works_under_every_template(name):
    protocol = ChatProtocol(tokenizer(name), chat_template=template(name), mode="text_only")
    prompt = protocol.full_text(protocol.initial_prompt(QUESTION))
    assert QUESTION in prompt and "code_interpreter" not in prompt


def test_qwen3_5_opens_reasoning_only_when_it_is_kept():
    for name in ("qwen3_5_think", "qwen3_5_nothink"):
        for thinking, end in (("disabled", "<think>\n\n</think>\n\n"), ("keep", "assistant\n<think>\n")):
            protocol = ChatProtocol(tokenizer(name), chat_template=template(name), thinking=thinking)
            assert protocol.full_text(protocol.initial_prompt("x")).endswith(end)


def test_llama_needs_a_chosen_format_and_then_follows_its_json_quoting_of_tool_output():
    with pytest.raises(UserError, match="Choose one of qwen_xml, hermes_json, fenced_python"):
        ChatProtocol(tokenizer("llama3_1"), chat_template=template("llama3_1"))
    protocol = ChatProtocol(tokenizer("llama3_1"), chat_template=template("llama3_1"), tool_format="fenced_python")
    tail = protocol.full_text(protocol.continuation((), 'a\n"b"'))
    assert tail == (
        "<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"
        '"a\\n\\"b\\""<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    )
