"""The registry of call syntaxes, and finding the one that a chat template speaks.

Contents: `syntax_of`, `detect_format`.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from retool.protocol import fenced_python, hermes_json, qwen_xml
from retool.protocol.types import CallSyntax, ToolFormat

SYNTAXES: Mapping[ToolFormat, CallSyntax] = MappingProxyType(
    {syntax.tool_format: syntax for syntax in (qwen_xml.SYNTAX, hermes_json.SYNTAX, fenced_python.SYNTAX)}
)

_SIGNS: Mapping[ToolFormat, re.Pattern[str]] = MappingProxyType(
    {
        ToolFormat.QWEN_XML: re.compile(r"<function="),
        ToolFormat.HERMES_JSON: re.compile(r'<tool_call>\s*\{"name":'),
    }
)


def syntax_of(tool_format: ToolFormat) -> CallSyntax:
    """The syntax of a format."""
    return SYNTAXES[tool_format]


def detect_format(rendered: str) -> ToolFormat | None:
    """The format of the calls and of the instructions in a rendered dialogue, or `None` if it shows no known one."""
    return next((tool_format for tool_format, sign in _SIGNS.items() if sign.search(rendered)), None)
