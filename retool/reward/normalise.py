r"""One spelling for what mathematicians write in many: pure string work, no parser and no sympy.

`normalise`: an answer or a gold as canonical LaTeX. Its result is read by `retool.reward.structure`. What it leaves in:
`\text{...}` for words and units, `\$` and other currency signs, `\%`, `^{\circ}`, and brackets without size commands.
Letters are never deleted.
"""

import re
from types import MappingProxyType

from retool.reward.characters import to_latex

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_NOTHING = frozenset(("$$", "$$$$", r"\(\)", r"\[\]"))
_SIZE_COMMANDS = re.compile(r"\\(?:m?left|m?right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?(?=\s|\\|[()\[\]|/.<>]|$)")
_STYLE_COMMANDS = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|tt|sf|boxed|null|nobreak|left|right|tiny|small|large|Large|LARGE|huge|Huge)(?![A-Za-z])"
)
_PHANTOM = re.compile(r"\\(?:(?:text)?color|hspace|vspace|phantom|hphantom|vphantom|label|tag)\*?\s*\{[^{}]*\}")
_FONTS = re.compile(r"\\(?:mathbf|mathit|mathsf|mathtt|boldsymbol|bm|mathord|mathnormal|ensuremath)(?![A-Za-z])\s*")
_TEXT_COMMANDS = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal|up|md|sc)?|mathrm|mbox|hbox|fbox|textnormal|operatorname\*?|emph|underline)"
    r"\s*\{(?P<content>[^{}]*)\}"
)
_NO_SPACE = re.compile(r"(?<!\\)\\!")
_WIDE_SPACE = re.compile(
    r"(?<!\\)\\(?:(?:quad|qquad|enspace|enskip|thinspace|medspace|thickspace)(?![A-Za-z])|[,;:> ])|~|\s+"
)
_DIGIT_GROUPS = re.compile(
    r"(?<![\d.,])(?P<sign>-?)(?P<first>[1-9]\d{0,2})(?P<rest>(?:(?:\{,\}|\\,|\\;|\\ |~)\d{3})+)(?!\d)"
)
_COMMA_NUMBER = re.compile(r"(?P<number>[1-9]\d{0,2}(?:[, ]\d{3})+)(?P<fraction>\.\d*)?(?![\d,/])")
_SYNONYMS = MappingProxyType(
    {
        r"\dfrac": r"\frac",
        r"\tfrac": r"\frac",
        r"\cfrac": r"\frac",
        r"\nicefrac": r"\frac",
        r"\sfrac": r"\frac",
        r"\dbinom": r"\binom",
        r"\tbinom": r"\binom",
        r"\leq": r"\le",
        r"\leqslant": r"\le",
        r"\geq": r"\ge",
        r"\geqslant": r"\ge",
        r"\neq": r"\ne",
        r"\lt": "<",
        r"\gt": ">",
        r"\lbrace": r"\{",
        r"\rbrace": r"\}",
        r"\lbrack": "[",
        r"\rbrack": "]",
        r"\lvert": "|",
        r"\rvert": "|",
        r"\vert": "|",
        r"\mid": "|",
        r"\ast": r"\cdot",
        r"\bullet": r"\cdot",
        r"\dots": r"\ldots",
        r"\cdots": r"\ldots",
        r"\dotsc": r"\ldots",
        r"\varnothing": r"\emptyset",
        r"\degree": r"^{\circ}",
        r"\textdegree": r"^{\circ}",
        r"\degrees": r"^{\circ}",
        r"\euro": "€",
        r"\pounds": "£",
        r"\textdollar": r"\$",
        r"\textpercent": r"\%",
        r"\percent": r"\%",
        r"\bigcup": r"\cup",
        r"\infin": r"\infty",
        r"\lor": r"\text{or}",
        r"\vee": r"\text{or}",
        r"\land": r"\text{and}",
        r"\wedge": r"\text{and}",
        r"\isin": r"\in",
        r"\ln": r"\ln",
        r"\tg": r"\tan",
        r"\ctg": r"\cot",
        r"\arctg": r"\arctan",
        r"\thetasym": r"\theta",
    }
)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD_COMMANDS = "arcsin|arccos|arctan|arccot|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|sqrt|log|ln|lg|exp|gcd|lcm|max|min"
_BARE_FUNCTION = re.compile(rf"(?<![A-Za-z\\])({_WORD_COMMANDS})(?=\s*[(\d\\_^{{]|\s+[A-Za-z](?![A-Za-z]))")
_BARE_CONSTANT = re.compile(r"(?<![A-Za-z\\])(pi|infinity|infty)(?![A-Za-z])")
_BARE_OPERATOR = re.compile(r"(?<![A-Za-z\\])(or|and)(?![A-Za-z])", re.IGNORECASE)
_TEXT = re.compile(r"(\\text\{[^{}]*\})")
_NUMBER_TEXT = re.compile(r"[-+]?[\d.,/]+\s*\\?%?")
_NUMBER_AND_UNIT = re.compile(r"(?P<number>[-+]?\d[\d.,/]*)\s+(?P<unit>[A-Za-z][A-Za-z ]*)")
_CHOICE = re.compile(r"\(?[A-Z]\)?[.:)]?")
_CONSTANT = re.compile("[eid]")
_NESTED_ROOT = re.compile(r"\\sqrt\s*\(")
_PERCENT = re.compile(r"\\?%")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))")
_TRAILING = re.compile(r"(?:\\\\|\\[ ,;:!]|[\s,;:]|(?<!\.)\.|\\$)+$")
_LEADING = re.compile(r"^(?:\s|\\\\)+")
_BRACKET = re.compile(r"\\.|[(){}]", re.DOTALL)
_EMPTY_SET = re.compile(r"\\\{\s*\\\}")
_BRACKETED_DIGITS = re.compile(r"(?<![\w)}\]])\((\d+)\)(?=\s*_)")
_MAX_ROUNDS = 8
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")


def normalise(text: str) -> str:
    """The canonical form of an answer. Takes time linear in its length, for lengths that an answer has."""
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    text = _strip_wrappers(to_latex(text))
    text = _PHANTOM.sub(" ", text)
    text = _TEXT_COMMANDS.sub(_resolve_text, text)
    text = _FONTS.sub("", text)
    text = _STYLE_COMMANDS.sub(" ", _SIZE_COMMANDS.sub("", text))
    text = _NO_SPACE.sub("", text)
    text = _DIGIT_GROUPS.sub(lambda match: match["sign"] + match["first"] + re.sub(r"\D", "", match["rest"]), text)
    text = text.replace("{,}", ",")
    text = _WIDE_SPACE.sub(" ", text)
    text = _COMMAND.sub(lambda match: _SYNONYMS.get(match.group(), match.group()), text)
    text = _DEGREE.sub(r"^{\\circ}", text)
    text = _normalise_plain(_collapse_brackets(text))
    text = _strip_wrappers(text)
    text = _EMPTY_SET.sub(r"\\emptyset ", _BRACKETED_DIGITS.sub(r"\1", text))
    return _join_thousands(_strip_braces(text)).strip()


def _normalise_plain(text: str) -> str:
    """Plain-text habits: `**`, `*`, `<=`, `sqrt(2)`, `pi`, a bare percent sign, `or`. Words in `\\text` stay."""
    parts = _TEXT.split(text)
    parts[::2] = [_plain_mathematics(part) for part in parts[::2]]
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def _plain_mathematics(text: str) -> str:
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ")
    text = _BARE_FUNCTION.sub(r"\\\1", text)
    text = _BARE_CONSTANT.sub(lambda match: "\\pi " if match[1] == "pi" else "\\infty ", text)
    text = _BARE_OPERATOR.sub(lambda match: rf"\text{{{match[1].lower()}}}", text)
    text = _PERCENT.sub(r"\\%", text)
    for _ in range(_MAX_ROUNDS):
        changed = _brace_group(_NESTED_ROOT, text)
        if changed == text:
            break
        text = changed
    return text


def _brace_group(opening: re.Pattern[str], text: str) -> str:
    """Turns the first bracketed argument after `opening` into a braced one: `\\sqrt(3)` becomes `\\sqrt{3}`."""
    match = opening.search(text)
    if match is None:
        return text
    depth = 1
    for index in range(match.end(), len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            inner = text[match.end() : index]
            return f"{text[: match.end() - 1].rstrip()}{{{inner}}}{text[index + 1 :]}"
    return text


def _resolve_text(match: re.Match[str]) -> str:
    """What is no word is what it contains: `\\text{57}`, `\\mathrm{e}`, a choice that is the whole answer."""
    content = re.sub(r"(?:\s|\\[ ,;:!]|~)+", " ", match["content"])
    if content.strip() in (r"\$", "$"):
        return r"\$"
    inner = content.strip(" $")
    command = match.group().split("{", 1)[0].rstrip()
    whole = not match.string[: match.start()].strip(" $") and not match.string[match.end() :].strip(" $.")
    number = _NUMBER_AND_UNIT.fullmatch(inner)
    if not inner:
        return " "
    if re.fullmatch(_WORD_COMMANDS, inner):
        return f"\\{inner} "
    if command in (r"\mathrm", r"\operatorname") and _CONSTANT.fullmatch(inner):
        return inner
    if _NUMBER_TEXT.fullmatch(inner) or (whole and _CHOICE.fullmatch(inner)):
        return f" {inner} "
    if whole and number is not None and number["unit"] not in ("or", "and"):
        return rf"{number['number']} \text{{{number['unit']}}}"
    if whole and any(character.isdigit() for character in inner):
        return f" {inner} "
    return rf"\text{{{content}}}"


def _strip_wrappers(text: str) -> str:
    """Takes math delimiters, markdown emphasis, and punctuation at the ends off."""
    for _ in range(_MAX_ROUNDS):
        if text in _NOTHING:
            return ""
        before = text
        text = _LEADING.sub("", _TRAILING.sub("", text))
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            if (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and not text.endswith("\\" + closing)
                and opening not in inner
            ):
                text = inner
        if text == before:
            break
    return text


def _collapse_brackets(text: str) -> str:
    """Drops a pair of brackets that encloses nothing but another pair of the same kind: `((7))` becomes `(7)`."""
    text = re.sub(r"(?<=[({])\s+(?=[({])|(?<=[)}])\s+(?=[)}])", "", text)
    opened: list[int] = []
    closing: dict[int, int] = {}
    for match in _BRACKET.finditer(text):
        token = match.group()
        if token in "({":
            opened.append(match.start())
        elif token in ")}" and opened:
            closing[opened.pop()] = match.start()
    dropped: set[int] = set()
    for begin, end in closing.items():
        if text[begin] == text[begin + 1] and text[end] == text[end - 1] and closing.get(begin + 1) == end - 1:
            dropped |= {begin + 1, end - 1}
    return "".join(character for index, character in enumerate(text) if index not in dropped) if dropped else text


def _strip_braces(text: str) -> str:
    """Takes braces around the whole off."""
    for _ in range(_MAX_ROUNDS):
        if not (text.startswith("{") and text.endswith("}") and not text.endswith("\\}")):
            break
        depth = 0
        for index, character in enumerate(text):
            if character in "{}" and (index == 0 or text[index - 1] != "\\"):
                depth += 1 if character == "{" else -1
                if depth == 0 and index < len(text) - 1:
                    return text
        text = text[1:-1].strip()
    return text


def _join_thousands(text: str) -> str:
    """Drops the separators of a number in well-formed groups of three, if that number is all there is.

    In a list or a bracket a comma separates values, so `(1,100)` stays a pair.
    """
    prefix = re.match(r"(?:[-+]|\\\$|\$|[€£¥₹]|[A-Za-z]\s*=|\s)*", text)
    start = prefix.end() if prefix is not None else 0
    match = _COMMA_NUMBER.match(text, start)
    if match is None:
        return text
    rest = text[match.end() :]
    if "," in re.sub(r"\\text\{[^{}]*\}", "", rest):
        return text
    return text[:start] + re.sub("[, ]", "", match["number"]) + (match["fraction"] or "") + rest
