"""What the model is told about an execution.

`render_text`: output, then errors, then one status line where the output alone would mislead.
`neutralise_markers`: breaks up chat markers in output, so that no text from a program reads as one.
"""

import re
import signal

from retool.sandbox.base import ExecutionStatus

_MARKERS = re.compile(
    r"<(?=\|[A-Za-z0-9_▁ ./:-]{1,64}\|>"
    r"|/?(?:tool_call|tool_response|tools|think|function|parameter|im_start|im_end|s)\b[^<>\n]{0,64}>"
    r"|(?:start_of_turn|end_of_turn|bos|eos|pad|unk)>)"
)


def neutralise_markers(text: str) -> str:
    """`text` with a space after the `<` of everything that a chat template could take for one of its own markers."""
    return _MARKERS.sub("< ", text)


def render_text(
    status: ExecutionStatus,
    *,
    stdout: str,
    stderr: str,
    returncode: int | None = None,
    limit: str = "",
) -> str:
    """The text that a model sees after an execution.

    `limit` describes the limit that was reached, for the statuses that have one: "10 s of CPU time", "1024 MB".
    """
    parts = [part.rstrip("\n") for part in (stdout, stderr) if part.strip()]
    line = _status_line(status, has_output=bool(parts), has_errors=bool(stderr.strip()), code=returncode, limit=limit)
    if line:
        parts.append(line)
    return neutralise_markers("\n".join(parts))


def _status_line(status: ExecutionStatus, *, has_output: bool, has_errors: bool, code: int | None, limit: str) -> str:
    above = "the output above is partial" if has_output else "there was no output"
    match status:
        case ExecutionStatus.OK:
            return "" if has_output else "[no output; use print() to see a result]"
        case ExecutionStatus.ERROR:
            return "" if has_errors and code == 1 else f"[the program ended with exit code {code}]"
        case ExecutionStatus.TIMEOUT:
            return f"[time limit of {limit} reached; {above}]"
        case ExecutionStatus.OUT_OF_MEMORY:
            return f"[memory limit of {limit} reached; {above}]"
        case ExecutionStatus.OUTPUT_LIMIT:
            return f"[output limit of {limit} reached; the program was stopped]"
        case ExecutionStatus.KILLED:
            return f"[the program was ended by {_signal_name(code)}; {above}]"
        case ExecutionStatus.INFRASTRUCTURE:
            return "[the code interpreter failed; this is no fault of the code]"


def _signal_name(code: int | None) -> str:
    if code is None or code >= 0:
        return "a signal"
    if -code == signal.SIGSEGV:
        return "a segmentation fault"
    try:
        return f"the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"the signal {-code}"
