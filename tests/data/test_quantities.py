"""Names for the numbers of a word problem: literal cases, and that a name is always a new valid identifier."""

import keyword

from hypothesis import given
from hypothesis import strategies as st

from retool.data.quantities import names_a_quantity, position, variable_names


def test_a_number_is_named_after_what_it_counts() -> None:
    assert variable_names("There are 87 oranges and 290 ripe bananas.", ["87", "290"]) == {
        "87": "oranges",
        "290": "ripe",
    }


def test_what_counts_the_same_is_told_apart_by_the_sentence() -> None:
    question = "Jake has 11 fewer peaches than Steven. Jake has 17 peaches."
    assert variable_names(question, ["11", "17"]) == {"11": "peaches", "17": "jake_peaches"}


def test_money_counts_dollars() -> None:
    assert variable_names("Dan has $ 4. He bought a bar for $8.", ["4", "8"]) == {"4": "dollars", "8": "bar_dollars"}


def test_a_number_that_the_question_does_not_name_is_numbered() -> None:
    assert variable_names("How many are there?", ["3", "4"]) == {"3": "number_1", "4": "number_2"}


def test_part_of_a_longer_number_is_no_occurrence() -> None:
    assert position("He has 12.5 kg, and 2 boxes.", "2") == 20
    assert position("none", "2") == 4


def test_a_bare_operand_counts_nothing() -> None:
    assert not names_a_quantity("What is 9 * 4?", "9")
    assert names_a_quantity("He has 9 marbles.", "9")


@given(
    st.text(alphabet="ab 12.$'-?éclassprint", max_size=80),
    st.lists(st.sampled_from(["1", "2", "12", "1.2"]), unique=True),
)
def test_names_are_distinct_identifiers_whatever_the_question(question: str, numbers: list[str]) -> None:
    names = variable_names(question, numbers)
    assert list(names) == numbers
    assert len(set(names.values())) == len(numbers)
    assert all(name.isidentifier() and not keyword.iskeyword(name) for name in names.values())
