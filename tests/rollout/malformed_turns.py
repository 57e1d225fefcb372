"""Turns that hold a malformed call, at least one a problem and format: protocol options and text."""

XML = {"tool_format": "qwen_xml"}
JSON = {"tool_format": "hermes_json"}
FENCED = {"tool_format": "fenced_python"}
FUNCTION = "<tool_call><function=code_interpreter>{}</function></tool_call>"
GOOD_XML = FUNCTION.format("<parameter=code>1</parameter>")

MALFORMED_TURNS = [
    (XML, "<function=code_interpreter>"),
    (XML, "<tool_call><function=code_interpreter>"),
    (XML, GOOD_XML * 2),
    (XML, GOOD_XML + " Done."),
    (XML, GOOD_XML.replace("code_interpreter", "python")),
    (XML, FUNCTION.format("print(1)")),
    (XML, FUNCTION.format("<parameter=source>1</parameter>")),
    (XML, FUNCTION.format("<parameter=code>1</parameter><parameter=code>1</parameter>")),
    (XML, FUNCTION.format("")),
    (XML, FUNCTION.format("<parameter=code>\n</parameter>")),
    (JSON, '{"name": "code_interpreter"}'),
    (JSON, '<tool_call>{"name": "code_interpreter"'),
    (JSON, "<tool_call>{bad}</tool_call>"),
    (JSON, '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'),
    (JSON, '<tool_call>{"name": "code_interpreter", "arguments": {"x": 1}}</tool_call>'),
    (JSON, '<tool_call>{"name": "code_interpreter", "arguments": {}}</tool_call>'),
    (JSON, '<tool_call>{"name": "code_interpreter", "arguments": {"code": ""}}</tool_call>'),
    (JSON, '<tool_call>{"name": "code_interpreter", "arguments": {"code": 1}}</tool_call>'),
    (FENCED, "```python\n1"),
    (FENCED, "```python\n1\n```\n```python\n1\n```"),
    (FENCED, "```python\n1\n```\nDone."),
    (FENCED, "```python\n```"),
]
