"""What the policy is told before the problem: the default system prompts and the tool's schema.

Contents: `default_system_prompt`, `tool_schema`.
"""

from retool.protocol.types import CODE_PARAMETER, TOOL_NAME, CallSyntax, PromptMode

_ANSWER = r"put the final answer, and nothing but it, in \boxed{}"


def default_system_prompt(mode: PromptMode, *, code_budget: int, syntax: CallSyntax | None) -> str:
    """The system prompt of a mode.

    `syntax` is the one to describe, for a chat template that does not describe the tool itself; `None` if it does.
    The text-only prompt is the same task without the tool, so that the two modes can be compared.
    """
    if mode is PromptMode.TEXT_ONLY:
        return f"Solve the mathematics problem. Reason step by step, then {_ANSWER}."
    parts = [
        f"Solve the mathematics problem. You may run Python code with the tool {TOOL_NAME}({CODE_PARAMETER}): each "
        "call starts afresh, and you are shown what the code prints.",
        _budget(code_budget),
    ]
    if syntax is not None:
        parts.append(f"{syntax.instructions}\nWait for the output before you go on.")
    parts.append(f"When you know the result, {_ANSWER}, in a turn without a call.")
    return "\n".join(parts) if syntax is not None else " ".join(parts)


def _budget(calls: int) -> str:
    if calls == 0:
        return "For this problem no calls are left."
    return f"Make at most one call in a turn and at most {calls} in all."


def tool_schema() -> dict[str, object]:
    """The tool in the form that chat templates take (JSON schema in OpenAI's function envelope)."""
    return {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "Runs Python code in a fresh interpreter and returns what it prints.",
            "parameters": {
                "type": "object",
                "properties": {CODE_PARAMETER: {"type": "string", "description": "The Python code to run."}},
                "required": [CODE_PARAMETER],
            },
        },
    }
