"""The script that builds `model=tiny`: tokenizer and template as shipped, traces token by token, nothing held out."""

import importlib
import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from retool.config.paths import conf_dir
from retool.data.arithmetic import ArithmeticSource, Operation, arithmetic_problem, is_held_out
from retool.engine.model.registry import resolve
from retool.protocol import ChatProtocol, TurnKind

TINY = resolve("tiny")
TOKENIZER: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(str(TINY))
PROTOCOL = ChatProtocol(TOKENIZER, system_prompt="")
NEWLINE, ENDOFTEXT, IM_START, IM_END = 198, 256, 257, 258
TOOL_CALL, END_TOOL_CALL, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER, RESPONSE, END_RESPONSE = range(259, 267)
USER, ASSISTANT, PRINT, BOXED = range(268, 272)


@pytest.fixture(scope="module")
def builder() -> Iterator[ModuleType]:
    sys.path.insert(0, str(conf_dir().parent / "scripts"))
    yield importlib.import_module("build_tiny")
    sys.path.pop(0)


def test_tokenizer_and_template_are_those_of_the_script(builder: ModuleType):
    built = builder.build_tokenizer()
    assert TOKENIZER.backend_tokenizer.to_str() == built.backend_tokenizer.to_str()
    assert TOKENIZER.chat_template == built.chat_template
    assert (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (IM_END, ENDOFTEXT)


def test_the_manifest_states_a_model_that_leaves_room_to_learn(builder: ModuleType):
    manifest = json.loads((TINY / "manifest.json").read_text("utf-8"))
    held_out = manifest["evaluation"]["multiply"]
    assert held_out["trajectories"] == 1024
    assert 0.45 <= held_out["accuracy"] <= 0.58
    assert held_out["accuracy_with_call"] >= 0.97
    assert held_out["accuracy_without_call"] <= 0.01
    assert manifest["evaluation"]["quick_check_band"] == builder.quick_check_band(held_out["accuracy"])


@given(st.lists(st.sampled_from(["<|im_end|>", "<tool_call>", "print(", " times ", "\n", "é", "x", "7"])).map("".join))
def test_text_with_known_pieces_round_trips(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text
    prompt = PROTOCOL.initial_prompt(text)
    assert PROTOCOL.full_text(prompt) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.count(IM_END) == 1 and TOOL_CALL not in prompt


def call(code: str, content: str = "") -> dict[str, Any]:
    function = {"name": "code_interpreter", "arguments": {"code": code}}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


def render(messages: list[dict[str, Any]], *, generation_prompt: bool = False) -> str:
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation_prompt)
    assert isinstance(text, str)
    return text


MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["tool", "user"]), st.text()),
        st.builds(lambda text: {"role": "assistant", "content": text}, st.text()),
        st.builds(call, st.text(), st.text(max_size=4)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=50, deadline=None)
@given(MESSAGES)
def test_the_template_only_appends(messages: list[dict[str, Any]]):
    for length in range(1, len(messages)):
        prompted = messages[length]["role"] == "assistant"
        so_far = render(messages[:length], generation_prompt=prompted)
        assert render(messages[: length + 1]).startswith(so_far)
    assert all(message["content"] in render(messages) for message in messages)


def test_the_template_writes_a_call_as_the_protocol_does():
    code = "  if 1:\n    print(1)"
    wire = PROTOCOL.render_call(code)
    text = render([{"role": "user", "content": "q"}, call(code)])
    assert text == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n" + wire + "<|im_end|>\n"
    assert PROTOCOL.parse(wire).code == code


@pytest.mark.parametrize(
    "message", [{"role": "user", "content": [{"type": "text"}]}, {"role": "critic", "content": ""}]
)
def test_the_template_refuses_what_it_cannot_write(message: dict[str, Any]):
    with pytest.raises(jinja2.TemplateError):
        render([message])


def test_a_trace_token_by_token(builder: ModuleType):
    problem = arithmetic_problem(Operation.MULTIPLY, 12, 34)
    trace = builder.Tracer(PROTOCOL, random.Random(0)).call(problem, "print(12*34)")
    # <|im_start|>user\nCompute 12 times 34.<|im_end|>\n<|im_start|>assistant\n, the question byte by byte
    prompt = [
        IM_START,
        USER,
        NEWLINE,
        34,
        78,
        76,
        79,
        84,
        83,
        68,
        220,
        16,
        17,
        220,
        83,
        72,
        76,
        68,
        82,
        220,
        18,
        19,
        13,
    ]
    prompt += [IM_END, NEWLINE, IM_START, ASSISTANT, NEWLINE]
    # <tool_call>\n<function=code_interpreter>\n<parameter=code>\nprint(12*34)\n
    # </parameter>\n</function>\n</tool_call><|im_end|>
    turn = [TOOL_CALL, NEWLINE, FUNCTION, NEWLINE, PARAMETER, NEWLINE, PRINT, 16, 17, 9, 18, 19, 8, NEWLINE]
    turn += [END_PARAMETER, NEWLINE, END_FUNCTION, NEWLINE, END_TOOL_CALL, IM_END]
    # \n<|im_start|>user\n<tool_response>\n408\n</tool_response><|im_end|>\n<|im_start|>assistant\n
    observation = [NEWLINE, IM_START, USER, NEWLINE, RESPONSE, NEWLINE, 19, 15, 23, NEWLINE, END_RESPONSE, IM_END]
    observation += [NEWLINE, IM_START, ASSISTANT, NEWLINE]
    # \boxed{408}<|im_end|>
    answer = [BOXED, 19, 15, 23, 92, IM_END]
    assert list(trace.tokens) == prompt + turn + observation + answer
    expected = [0.0] * len(prompt) + [1.0] * len(turn) + [0.0] * len(observation) + [1.0] * len(answer)
    assert list(trace.weights) == expected


def test_a_guess_token_by_token(builder: ModuleType):
    trace = builder.Tracer(PROTOCOL, random.Random(0)).guess(arithmetic_problem(Operation.MULTIPLY, 12, 34))
    # the prompt of 28 tokens, then \boxed{859}<|im_end|>: the choice to guess counts fully, its digits little
    assert list(trace.tokens[28:]) == [BOXED, 23, 20, 24, 92, IM_END]
    assert list(trace.weights) == [0.0] * 28 + [1.0] + [0.1] * 5


def test_traces_are_the_same_for_the_same_seed(builder: ModuleType):
    first, second = (list(islice(builder.batches(PROTOCOL, 5, 8), 3)) for _ in range(2))
    assert first == second
    assert first != list(islice(builder.batches(PROTOCOL, 6, 8), 3))


def test_traces_hold_right_calls_wrong_guesses_and_nothing_held_out(builder: ModuleType):
    held_out = {problem.question for problem in ArithmeticSource().load().holdout}
    rng = random.Random(1)
    tracer = builder.Tracer(PROTOCOL, rng)
    for problem, code in islice(builder.training_problems(rng), 300):
        assert not is_held_out(problem.id) and problem.question not in held_out
        assert eval(code.removeprefix("print")) == int(problem.answer)
        guess = tracer.guess(problem)
        text = PROTOCOL.decode(guess.tokens[guess.weights.index(1.0) :])
        number = text.removeprefix("\\boxed{").removesuffix("}")
        assert number != problem.answer and len(number) == len(problem.answer)
        assert str(int(number)) == number
        assert PROTOCOL.parse(text).kind is TurnKind.ANSWER
