r"""Units, currency, degrees and percent around a value.

`Quantity`: a value's text without them, and what they were. `split_quantity`: takes them off a normalised answer.
`units_agree`: whether two units can be the same.

A unit counts as one where it is written as text (`\text{cm}`, `\mathrm{km/h}`), as a sign, or as a whole English or
Chinese word from a fixed list after the number. Bare letters are variables and stay: `6g` is a product.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType

_CURRENCY = re.compile(
    r"^(?P<sign>[-+]?)\s*(?:US|U\.S\.)?\s*(?P<currency>\\\$|\$|[€£¥₹]|\\text\{\s*(?:Rs\.?|USD|EUR|GBP|CNY|RMB)\s*\})"
    r"\s*(?P<rest>.+)$",
    re.DOTALL,
)
_CURRENCY_SUFFIX = re.compile(r"\s*(?P<currency>\\\$|[€£¥₹])$")
_PERCENT = re.compile(
    r"\s*(?:\\%|\\text\{\s*(?:percent|per cent|percentage|pct)\.?\s*\}|(?<=\s)percent)$", re.IGNORECASE
)
_DEGREE = re.compile(r"\s*\^\{\\circ\}\s*(?P<scale>[CFK]|\\text\{\s*[CFK]\s*\})?$")
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_TEXT_UNIT = r"\\text\{[^{}]*\}\s*(?:\^\s*(?:\{-?\d+\}|-?\d))?"
_TEXT_UNITS = re.compile(rf"\s*(?P<unit>/?\s*{_TEXT_UNIT}(?:\s*(?:/|\\cdot|\s)\s*{_TEXT_UNIT})*)$")
_WORDS = (
    "dollars?|cents?|euros?|pounds?|units?|square units?|cubic units?|degrees?|radians?|"
    "(?:square |cubic )?(?:(?:milli|centi|kilo)?met(?:er|re)s?|inch(?:es)?|feet|foot|yards?|miles?)|"
    "(?:kilo|milli)?grams?|ounces?|(?:milli)?lit(?:er|re)s?|gallons?|"
    "seconds?|minutes?|hours?|days?|weeks?|months?|years?|"
    "people|students?|children|books?|apples?|eggs?|marbles?|pages?|times|ways|items?|pieces?|tickets?"
)
_BARE_WORD = re.compile(rf"(?<=[\d}})])\s+(?P<unit>{_WORDS})$", re.IGNORECASE)
_CHINESE = re.compile(
    r"\s*(?P<unit>平方厘米|立方厘米|平方米|立方米|平方千米|厘米|毫米|分米|千米|公里|千克|公斤|小时|分钟|人民币|元|角|分|个|"
    r"只|人|名|本|张|块|岁|天|年|月|周|次|种|米|克|吨|升|秒|度|页|辆|颗|棵|支|枝|件|套|朵|条|头|位)$"
)
# fmt: off
_NO_UNIT_WORDS = frozenset((
    "or", "and", "nor", "but", "if", "when", "where", "otherwise", "else", "for", "to", "approx",
    "approximately", "about", "mod", "modulo", "is", "are", "at", "least", "most", "more", "less", "than",
    "from", "between", "base", "not", "no", "none", "only", "any", "all", "some", "either", "neither", "with",
    "without", "such", "that", "as", "iff", "unless", "until", "except", "because", "even", "odd", "true",
    "false", "yes", "undefined", "infinite", "impossible", "does", "exist", "maybe", "perhaps", "possibly",
    "probably", "likely", "roughly", "nearly", "almost", "around", "above", "below", "over", "under", "max",
    "min", "maximum", "minimum", "up", "correct", "wrong", "positive", "negative", "plus", "minus",
    "multiplied", "divided", "squared", "cubed", "factorial", "factorials", "root", "power", "pi", "double",
    "triple", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "twenty", "thirty", "forty", "fifty", "hundred", "hundreds", "thousand", "thousands", "million",
    "millions", "billion", "billions", "trillion", "trillions", "lakh", "crore", "dozen", "dozens", "score",
    "half", "halves", "third", "thirds", "fourth", "fourths", "fifth", "fifths", "sixths", "sevenths", "eighth",
    "eighths", "ninths", "tenth", "tenths", "hundredth", "hundredths", "thousandth", "thousandths", "millionth",
    "millionths", "percent", "mn", "bn",
))
_ONE_LETTER_UNITS = frozenset("mMsSgGhHlLAVWJNKCFTdt")
# fmt: on
_NO_UNIT_CHINESE = re.compile(
    "以上|以下|以内|以外|左右|上下|约|或|和|以及|且|与|到|至|不|非|没|万|亿|百|十|千(?![米克瓦])|半|除|乘|加|减|余|几|分之|如果|当"
)
_UNIT_CONTENT = re.compile(r"[^\W\d_]+|[\s/.·⋅()^\d-]")
_MAX_UNIT_WORDS = 5
_CANONICAL = MappingProxyType(
    {
        "dollar": "$",
        "usd": "$",
        "degree": "°",
        "deg": "°",
        "meter": "m",
        "metre": "m",
        "centimeter": "cm",
        "centimetre": "cm",
        "millimeter": "mm",
        "millimetre": "mm",
        "kilometer": "km",
        "kilometre": "km",
        "inch": "in",
        "inche": "in",
        "foot": "ft",
        "feet": "ft",
        "mile": "mi",
        "yard": "yd",
        "gram": "g",
        "kilogram": "kg",
        "liter": "l",
        "litre": "l",
        "hour": "h",
        "hr": "h",
        "minute": "min",
        "second": "s",
        "sec": "s",
        "sq": "square",
        "per": "/",
        "元": "yuan",
        "厘米": "cm",
        "米": "m",
        "千米": "km",
        "公里": "km",
        "度": "°",
        "小时": "h",
        "分钟": "min",
    }
)
_CURRENCY_WORDS = MappingProxyType({"USD": "$", "EUR": "€", "GBP": "£", "CNY": "yuan", "RMB": "yuan"})
_POWERS = MappingProxyType({"square": "2", "cubic": "3"})


@dataclass(frozen=True, slots=True)
class Quantity:
    """`value` is what is left of the text. `unit` is in canonical form, empty where there is none."""

    value: str
    unit: str = ""
    percent: bool = False


def split_quantity(text: str) -> Quantity:
    """Takes sign, unit and percent off a normalised answer; text without them comes back as it is."""
    currency = _CURRENCY.match(text)
    if currency is not None:
        inner = split_quantity(currency["sign"] + currency["rest"])
        return Quantity(inner.value, inner.unit or _currency(currency["currency"]), inner.percent)
    percent = _PERCENT.search(text)
    if percent is not None and percent.start() > 0:
        return Quantity(text[: percent.start()].rstrip(), percent=True)
    degree = _DEGREE.search(text)
    if degree is not None and degree.start() > 0 and not _ANGLE_FUNCTION.search(text):
        scale = re.sub(r"\\text|\W", "", degree["scale"] or "")
        return Quantity(text[: degree.start()].replace(r"^{\circ}", "").rstrip(), f"°{scale}")
    for pattern in (_TEXT_UNITS, _BARE_WORD, _CHINESE):
        match = pattern.search(text)
        if match is not None and match.start() > 0 and _is_unit(match["unit"]):
            return Quantity(text[: match.start()].rstrip(" ,"), _canonical(match["unit"]))
    suffix = _CURRENCY_SUFFIX.search(text)
    if suffix is not None and suffix.start() > 0:
        return Quantity(text[: suffix.start()].rstrip(), _currency(suffix["currency"]))
    return Quantity(text)


def units_agree(first: str, second: str) -> bool:
    """Whether the units can be the same: a missing one agrees with any."""
    return not first or not second or first == second


def _currency(sign: str) -> str:
    word = re.sub(r"\\text|\W", "", sign)
    return _CURRENCY_WORDS.get(word, word.lower()) if word else sign.removeprefix("\\")


def _words(unit: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", unit.replace(r"\text", " ").replace(r"\cdot", " "))


def _is_unit(unit: str) -> bool:
    words = _words(unit)
    contents = "".join(re.findall(r"\\text\{([^{}]*)\}", unit)) or unit
    return (
        0 < len(words) <= _MAX_UNIT_WORDS
        and not any(word.lower() in _NO_UNIT_WORDS for word in words)
        and all(len(word) > 1 or word in _ONE_LETTER_UNITS or not word.isascii() for word in words)
        and not _NO_UNIT_CHINESE.search("".join(words))
        and not _UNIT_CONTENT.sub("", contents).strip("°$%")
    )


def _canonical(unit: str) -> str:
    """Lower case, singular, common names as symbols, `square cm` as `cm^2`; `units` is no unit at all."""
    text = re.sub(r"\\text|\\cdot|[{}\s]", " ", unit).replace("^ ", "^")
    parts: list[str] = []
    power = ""
    for part in re.findall(r"[^\W\d_]+|\^\s*-?\d+|/", text):
        name = part.lower()
        if len(name) > 3 and name.endswith("s"):
            name = name[:-1]
        name = _CANONICAL.get(name, name)
        if name in _POWERS:
            power = f"^{_POWERS[name]}"
        elif name != "unit":
            parts.append(name.replace(" ", "") + power)
            power = ""
    return " ".join(parts).replace(" ^", "^").replace(" / ", "/")
