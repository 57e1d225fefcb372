r"""Names for the numbers of a word problem, as a programmer would name them: what each number counts, and whose it is.

Contents: `variable_names`, `names_a_quantity`, `position`.
"""

import keyword
import re
from collections.abc import Iterator, Sequence

_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a an the of in on at to for from with and or but is are was were be been he she it they we you i his her
        their its that this these those if then than as by per each every how many much more less fewer there had has
        have did does do times plus minus what who which when where some other another only about all also so into
        now them him us my your our not out up off over after before total print""",
    )
)
_WORDS_AFTER = 3
_SENTENCE_END = re.compile(r"[.?!](?=\s|$)")


def variable_names(question: str, numbers: Sequence[str]) -> dict[str, str]:
    """A distinct identifier for each number: the noun behind it, then that noun with its owner, then a plain count.

    `87 oranges` gives `oranges`. Where two numbers count the same, the later one is told apart by the nearest word of
    its sentence in front of it: `Tim has 9 marbles and won 4 marbles` gives `marbles` and `won_marbles`.
    """
    names: dict[str, str] = {}
    for number in numbers:
        taken = set(names.values())
        names[number] = next(name for name in _candidates(question, number) if name not in taken)
    return names


def names_a_quantity(question: str, number: str) -> bool:
    """Whether a word behind the number says what it counts, as in `9 marbles` and not in `9 * 4`."""
    found = _occurrence(question, number)
    return found is not None and bool(_words_around(question, found)[0])


def position(question: str, number: str) -> int:
    """Where the question names the number; behind everything where it does not."""
    found = _occurrence(question, number)
    return found.start() if found else len(question)


def _candidates(question: str, number: str) -> Iterator[str]:
    found = _occurrence(question, number)
    nouns, owners = ([], []) if found is None else _words_around(question, found)
    yield from nouns[:1]
    yield from (f"{owner}_{noun}" for noun in nouns[:1] for owner in owners)
    yield from nouns[1:]
    yield from owners
    yield from (f"number_{count}" for count in range(1, 1000))


def _words_around(question: str, found: "re.Match[str]") -> tuple[list[str], list[str]]:
    """Content words close behind the number, in order, and those of its sentence in front of it, nearest first."""
    sentence_start = max((end.end() for end in _SENTENCE_END.finditer(question, 0, found.start())), default=0)
    before = _content_words(question[sentence_start : found.start()])[::-1]
    behind = re.match(rf"(?:[ -]+[A-Za-z]+){{0,{_WORDS_AFTER}}}", question[found.end() :])
    after = _content_words(behind[0]) if behind else []
    if re.search(r"\$\s*$", question[: found.start()]):
        after.insert(0, "dollars")
    return after, before


def _content_words(text: str) -> list[str]:
    words = [word.lower() for word in re.findall(r"[A-Za-z]{2,}", re.sub(r"'s?\b", "", text))]
    return [word for word in words if word not in _FUNCTION_WORDS and not keyword.iskeyword(word)]


def _occurrence(question: str, number: str) -> "re.Match[str] | None":
    return re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", question)
