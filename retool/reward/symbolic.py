"""The symbolic worker: a process that answers one question at a time, and that can be killed at any moment.

Questions come one a line on standard input, and outcomes go one a line to standard output; the first reply says that
the worker is ready. `answer_question`: one question to one outcome. `main`: the loop.

Questions within this package's own grammar are decided by `retool.reward.numeric`; a gold beyond it goes to
math-verify, gold first, with its fallbacks, units and boxes off, and without its timeouts: the time limit is the kill.
"""

import ctypes
import importlib
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Sequence

from retool.reward.expression import Node, TooComplexError, UnreadableError, read_expression
from retool.reward.numeric import equal, same_relation
from retool.reward.questions import GOLD_UNREADABLE, LOADED, READY, Question, QuestionKind, question_from_line
from retool.reward.verdict import VerdictReason
from retool.reward.vocabulary import COMMANDS

_PR_SET_PDEATHSIG = 1
_CPU_MARGIN_S = 2
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")


def answer_question(question: Question) -> str:
    """The outcome of a question: a `VerdictReason`, or `GOLD_UNREADABLE`. Takes as long as it takes."""
    try:
        if question.kind is QuestionKind.LIBRARY:
            if not _beyond_grammar(question.gold[0]):
                return GOLD_UNREADABLE
            return _ask_math_verify(question.gold[0], question.answer[0])
        gold, answer = _read(question.gold), _read(question.answer)
        if question.kind is QuestionKind.RELATION:
            same = same_relation(gold, answer, question.sign)
        else:
            same = equal(gold[0], answer[0], question.decimals)
    except (TooComplexError, RecursionError):
        return VerdictReason.TOO_COMPLEX
    except UnreadableError:
        return VerdictReason.UNPARSEABLE
    except MemoryError:
        return VerdictReason.OUT_OF_MEMORY
    return VerdictReason.CORRECT_SYMBOLIC if same else VerdictReason.WRONG_SYMBOLIC


def _beyond_grammar(gold: str) -> bool:
    """Whether a gold uses notation that this package does not know. All else it would have read: `3 4` is nothing.

    Math-verify would read that as 7.
    """
    return any(command not in COMMANDS for command in re.findall(r"\\[A-Za-z]+", gold))


def _read(texts: Sequence[str]) -> list[Node]:
    return [read_expression(text) for text in texts]


def _ask_math_verify(gold: str, answer: str) -> str:
    """Math-verify's opinion. Decimals become exact fractions first: it would compare them to six places."""
    from latex2sympy2_extended.math_normalization import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    plain = NormalizationConfig(units=False, malformed_operators=False, nits=False, boxed="none", equations=False)
    target = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=plain)
    parsed = [
        parse(f"${text}$", [target], fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None)
        for text in (_DECIMAL.sub(_exact_fraction, gold), _DECIMAL.sub(_exact_fraction, answer))
    ]
    if not parsed[0]:
        return GOLD_UNREADABLE
    if not parsed[1]:
        return VerdictReason.UNPARSEABLE
    same = verify(parsed[0], parsed[1], timeout_seconds=None)
    return VerdictReason.CORRECT_SYMBOLIC if same else VerdictReason.WRONG_SYMBOLIC


def _exact_fraction(match: re.Match[str]) -> str:
    whole, decimals = match.groups()
    return rf"\frac{{{int(whole + decimals)}}}{{{10 ** len(decimals)}}}"


def main(memory_bytes: int, cpu_seconds: float, owner: int) -> None:
    """Serves questions from standard input until it closes. Ends with SIGHUP if the starting thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)
    if os.getppid() != owner:
        return
    logging.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    replies.write(READY + "\n")
    for line in sys.stdin:
        question = question_from_line(line)
        if question.kind is QuestionKind.LIBRARY and "math_verify" not in sys.modules:
            importlib.import_module("math_verify")
            replies.write(LOADED + "\n")
        _allow_cpu(cpu_seconds)
        replies.write(answer_question(question) + "\n")


def _allow_cpu(seconds: float) -> None:
    """The kernel ends a worker that nobody is left to kill."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(usage.ru_utime + usage.ru_stime + seconds) + _CPU_MARGIN_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
