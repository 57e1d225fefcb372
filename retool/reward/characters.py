"""Unicode to ASCII and LaTeX: what models write instead of commands.

`to_latex`: one string to another, without any knowledge of what the text means.
"""

import re
import unicodedata
from types import MappingProxyType

_SYMBOLS = MappingProxyType(
    {
        "−": "-",
        "﹣": "-",
        "‐": "-",
        "‑": "-",
        "×": r" \times ",
        "✕": r" \times ",
        "÷": r" \div ",
        "·": r" \cdot ",
        "⋅": r" \cdot ",
        "∙": r" \cdot ",
        "∗": "*",
        "⁄": "/",
        "∕": "/",
        "±": r" \pm ",
        "∓": r" \mp ",
        "≤": r" \le ",
        "⩽": r" \le ",
        "≥": r" \ge ",
        "⩾": r" \ge ",
        "≠": r" \ne ",
        "≈": r" \approx ",
        "≡": r" \equiv ",
        "∈": r" \in ",
        "∪": r" \cup ",
        "∩": r" \cap ",
        "∖": r" \setminus ",
        "∅": r" \emptyset ",
        "∞": r" \infty ",
        "°": r"^{\circ}",
        "º": r"^{\circ}",
        "…": r" \ldots ",
        "⋯": r" \ldots ",
        "′": "'",
        "’": "'",
        "∠": r" \angle ",
        "△": r" \triangle ",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "⌊": r"\lfloor ",
        "⌋": r"\rfloor ",
        "⌈": r"\lceil ",
        "⌉": r"\rceil ",
        "。": ".",
        "、": ",",
        "ϕ": r" \phi ",
        "ϵ": r" \epsilon ",
        "\u00a0": r"\,",
        "\u2009": r"\,",
        "\u202f": r"\,",
    }
)
_SUPERSCRIPTS = MappingProxyType(dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True)))
_SUBSCRIPTS = MappingProxyType(dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢ", "0123456789+-()ni", strict=True)))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+(?![A-Za-z{]))?")
_ROOT_COMMANDS = MappingProxyType({"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"})
_VULGAR_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_LEADING_DASH = re.compile(r"(^\s*|[(\[{,=]\s*)[–—]\s*(?=[\d\\.A-Za-z])")
_REPEATING_BAR = re.compile("((?:\\d\u0305)+)")


def to_latex(text: str) -> str:
    """`text` with invisible characters dropped, full-width and styled characters plain, and symbols as LaTeX."""
    if text.isascii():
        return text
    text = _LEADING_DASH.sub(r"\1-", text)
    text = _REPEATING_BAR.sub(lambda match: rf"\overline{{{match[1].replace(chr(0x305), '')}}}", text)
    text = _SUPERSCRIPT_RUN.sub(lambda match: _script("^", match.group(), _SUPERSCRIPTS), text)
    text = _SUBSCRIPT_RUN.sub(lambda match: _script("_", match.group(), _SUBSCRIPTS), text)
    text = _VULGAR_FRACTION.sub(_fraction, text)
    text = "".join(_SYMBOLS.get(character, character) for character in text)
    text = unicodedata.normalize("NFKC", text)
    text = "".join(_plain(character) for character in text)
    return _ROOT.sub(_root, text)


def _script(mark: str, run: str, plain: "MappingProxyType[str, str]") -> str:
    return f"{mark}{{{''.join(plain[character] for character in run)}}}"


def _fraction(match: re.Match[str]) -> str:
    numerator, denominator = unicodedata.normalize("NFKC", match.group()).split("\u2044")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _root(match: re.Match[str]) -> str:
    command = _ROOT_COMMANDS[match[1]]
    return f"{command}{{{match[2]}}}" if match[2] else command


def _plain(character: str) -> str:
    """One character after compatibility normalisation: digits of any script, Greek letters, format characters."""
    if character.isascii():
        return character
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if unicodedata.category(character) in ("Cf", "Cc", "Mn"):
        return ""
    name = unicodedata.name(character, "").split()
    if len(name) == 4 and name[0] == "GREEK" and name[2] == "LETTER":
        letter = name[3].lower().replace("lamda", "lambda")
        return f"\\{letter if name[1] == 'SMALL' else letter.capitalize()} "
    return character
