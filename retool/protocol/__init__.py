"""How a model is asked, read and answered: system prompts, tool-call parsers and token-in-token-out continuation.

Contents: `ChatProtocol` and the types it speaks.
"""

from retool.protocol.chat import ChatProtocol
from retool.protocol.types import ParsedTurn, ParseProblem, PromptMode, Thinking, ToolFormat, TurnKind

__all__ = ["ChatProtocol", "ParseProblem", "ParsedTurn", "PromptMode", "Thinking", "ToolFormat", "TurnKind"]
