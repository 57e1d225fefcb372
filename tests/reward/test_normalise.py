"""One spelling for many, and shapes."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retool.reward.normalise import normalise
from retool.reward.structure import Kind, read_answer
from retool.reward.units import Quantity, split_quantity, units_agree


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("√11", r"\sqrt{11}"),
        ("３．５", "3.5"),
        ("−7", "-7"),
        ("–7", "-7"),
        ("π", r"\pi"),
        (r"\left( 1, 2 \right)", "( 1, 2 )"),
        (r"50,\!600", "50600"),
        ("1,234,567.5", "1234567.5"),
        (r"18{,}000", "18000"),
        (r"1\,234", "1234"),
        ("12 345", "12345"),
        ("3,4,5", "3,4,5"),
        ("1,23", "1,23"),
        ("(1,234)", "(1,234)"),
        ("1,000, 2,000", "1,000, 2,000"),
        ("3 100/200", "3 100/200"),
        ("$57$", "57"),
        (r"\(57\)", "57"),
        ("**57**", "57"),
        ("57.", "57"),
        (r"57\,", "57"),
        ("5!", "5!"),
        (r"\text{57}", "57"),
        (r"\mathrm{e}", "e"),
        (r"5\text{ m}", r"5\text{ m}"),
        ("6g", "6g"),
        ("3x+2t", "3x+2t"),
        ("8%", r"8\%"),
        ("x**2*y", r"x^2\cdot y"),
        ("sqrt(3)/2", r"\sqrt{3}/2"),
        ("pi/2", r"\pi /2"),
        ("7 or 8", r"7 \text{or} 8"),
        (r"90^{ \circ }", r"90^{\circ}"),
        ("\u200b42\ufeff", "42"),
        (r"\text{ }", ""),
        (r"\ ", ""),
    ],
)
def test_normalise(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("5", Kind.VALUE),
        ("(5)", Kind.VALUE),
        ("x=5", Kind.VALUE),
        (r"5\text{ cm}", Kind.VALUE),
        ("1, 2", Kind.COLLECTION),
        (r"7\text{ or }8", Kind.COLLECTION),
        ("48或84", Kind.COLLECTION),
        (r"\{1\}", Kind.COLLECTION),
        (r"\pm 6", Kind.COLLECTION),
        ("(1,2)", Kind.BRACKETED),
        ("[1,2)", Kind.BRACKETED),
        (r"[1,2)\cup(3,4]", Kind.UNION),
        (r"\begin{pmatrix}1&2\end{pmatrix}", Kind.MATRIX),
        ("x>4", Kind.RELATION),
        ("1<x<2", Kind.RELATION),
        (r"x\in[1,2]", Kind.BRACKETED),
        (r"\text{Tuesday}", Kind.TEXT),
        ("no solution", Kind.TEXT),
        (r"\infty", Kind.NAMED),
        (r"1,2,\ldots,n", Kind.COLLECTION),
        (r"5\text{ if }n\text{ is even}", Kind.OTHER),
    ],
)
def test_kinds(text, kind):
    assert read_answer(normalise(text)).kind is kind


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        (r"5\text{ cm}", Quantity("5", "cm")),
        (r"5\text{cm}^2", Quantity("5", "cm^2")),
        (r"5\text{ square centimeters}", Quantity("5", "cm^2")),
        (r"30 \text{km/h}", Quantity("30", "km/h")),
        (r"30\text{ kilometers per hour}", Quantity("30", "km/h")),
        (r"5\text{ units}", Quantity("5", "")),
        (r"\$25", Quantity("25", "$")),
        (r"-\$25", Quantity("-25", "$")),
        ("25 dollars", Quantity("25", "$")),
        (r"90^{\circ}", Quantity("90", "°")),
        (r"25^{\circ}\text{C}", Quantity("25", "°C")),
        (r"\sin 30^{\circ}", Quantity(r"\sin 30^{\circ}")),
        (r"8\%", Quantity("8", percent=True)),
        ("48元", Quantity("48", "yuan")),
        (r"5\text{ or so}", Quantity(r"5\text{ or so}")),
        ("6g", Quantity("6g")),
        ("5 m", Quantity("5 m")),
        (r"\text{cm}", Quantity(r"\text{cm}")),
    ],
)
def test_units_are_taken_off_only_where_they_are_written_as_such(text, quantity):
    assert split_quantity(text) == quantity


def test_units_agree():
    assert units_agree("", "cm") and units_agree("cm", "cm") and not units_agree("cm", "m")


ANY = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
LATEX = st.lists(
    st.sampled_from(
        [
            "\\frac",
            "{",
            "}",
            "1",
            "23",
            ",",
            ".",
            "\\text{",
            "cm",
            " ",
            "\\left",
            "\\right",
            "(",
            ")",
            "[",
            "]",
            "\\{",
            "\\}",
            "^",
            "_",
            "\\%",
            "$",
            "x",
            "=",
            "<",
            "\\cup",
            "\\pm",
            "|",
            "\\sqrt",
            "\\",
            "&",
            "!",
            "\\,",
            "+",
            "-",
            "\\begin{pmatrix}",
            "\\end{pmatrix}",
            "or",
            "或",
            "°",
            "½",
            "e",
            "\\ldots",
        ]
    ),
    max_size=25,
).map("".join)


@settings(deadline=None, derandomize=True)
@given(st.one_of(ANY, LATEX))
@example(r"\pm x \pmod 3")
@example(r"\pmatrix \pm")
def test_no_text_makes_reading_fail(text):
    answer = read_answer(normalise(text))
    assert answer == read_answer(normalise(text))


@settings(deadline=None, derandomize=True)
@given(LATEX)
def test_normalising_twice_changes_no_reading(text):
    once = normalise(text)
    assert read_answer(normalise(once)).kind is not None


@settings(deadline=None, derandomize=True)
@given(st.integers(-(10**12), 10**12))
def test_spellings_of_an_integer_are_one(number):
    spellings = [str(number), f"{number:,}", f"{number}.0", f"${number}$", rf"\text{{{number}}}", f" {number}. "]
    spellings += [f"{number:,}".replace(",", "{,}"), f"{number:,}".replace(",", r"\,"), rf"\left({number}\right)"]
    spellings += [f"x = {number}", rf"{number}\text{{ cm}}", str(number).replace("-", "−")]
    values = {read_answer(normalise(spelling)).latex.removesuffix(".0") for spelling in spellings}
    assert values == {str(number)}
