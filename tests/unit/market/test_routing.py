"""Patterns: what they match, which are refused and in what words, and that none can stall."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from entrepot.errors import PatternRefused
from entrepot.market import routing
from entrepot.market.routing import Matcher, Routes, compile_patterns

LIMIT = 65_536
"""More than the default of ``max_pattern_program``, so that large patterns are met as well."""


def routes(*patterns: str, version: int = 2, **contracts: str) -> Routes:
    return Routes(version, patterns, contracts, LIMIT)


def matches(pattern: str, product_id: str) -> bool:
    return routes(pattern).serves(product_id, None)


def refusal(*patterns: str, limit: int = LIMIT) -> str:
    with pytest.raises(PatternRefused) as caught:
        compile_patterns(patterns, limit)
    assert caught.value.code == "pattern_refused"
    return str(caught.value)


# --- what a pattern means ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("layer_3", ["layer_3"], ["layer_31", "xlayer_3", "layer_", "LAYER_3", "", "layer_3\n"]),
        (r"layer_\d+", ["layer_0", "layer_123"], ["layer_", "layer_x", "layer_1 ", "layer_٣"]),
        (r"\w+", ["abc_1"], ["é", "a b", ""]),
        (r"\s", [" ", "\t"], ["\u00a0", "\v"]),
        ("a|ab", ["a", "ab"], ["b", "aba"]),
        ("(?i)ab", ["AB", "aB"], ["abc"]),
        (".", ["a", "é", "漢", "😀"], ["\n", "ab", ""]),
        ("(?s).", ["\n"], ["ab"]),
        ("a$", ["a"], ["a\n", "ab"]),
        ("^a", ["a"], ["ba"]),
        (".*", ["", "anything"], ["two\nlines"]),
        ("", [""], ["a"]),
        ("é+", ["éé"], ["e\u0301"]),
        ("a\0b", ["a\0b"], ["a"]),
        (r"a{1000}", ["a" * 1000], ["a" * 999]),
    ],
)
def test_a_pattern_matches_whole_ids(pattern: str, yes: list[str], no: list[str]) -> None:
    """From end to end, in RE2's terms: classes are ASCII, ``.`` is all but a newline."""
    assert [i for i in yes if not matches(pattern, i)] == []
    assert [i for i in no if matches(pattern, i)] == []


def test_any_pattern_of_a_list_will_do() -> None:
    one = routes("a", r"b\d")
    assert [i for i in ("a", "b1", "ab1", "b") if one.serves(i, None)] == ["a", "b1"]


# --- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)a", "(?="),
        ("(?!a)b", "(?!"),
        ("(?<=a)b", "(?<="),
        ("(?<!a)b", "(?<!"),
        (r"(a)\1", r"\1"),
        ("(?P<x>a)(?P=x)", "(?P"),
        (r"a\Z", r"\Z"),
        ("(?>a)", "(?>"),
        ("a{1001}", "{1001}"),
        ("(a{1000}){1000}", "{1000}"),
        ("(", "missing )"),
        ("[b-a]", "b-a"),
        ("*", "*"),
        (r"\pL{900}", "too large"),
    ],
)
def test_a_pattern_that_cannot_be_served_is_refused_by_name(pattern: str, reason: str) -> None:
    """The refusal shows the pattern, what in it is not understood, and what is."""
    said = refusal("fine", pattern)
    assert repr(pattern) in said
    assert reason in said.replace(repr(pattern), "", 1)
    assert "lookaround" in said


def test_a_pattern_that_is_no_text_is_refused() -> None:
    """Half a character is none, and its refusal can itself be printed and sent."""
    said = refusal("\ud800")
    assert "not Unicode text" in said
    said.encode()


def test_a_long_pattern_is_cut_in_its_refusal() -> None:
    assert len(refusal("x" * 4000 + r"\1")) < 300


def test_a_list_of_no_patterns_is_refused() -> None:
    assert "at least one pattern" in refusal()


def many(k: int, names: int = 10_000) -> str:
    """A pattern of so many names, about three instructions each, in the k-th of several lists."""
    return "|".join(f"{k}_product_{i}_x" for i in range(names))


def test_a_pattern_is_limited_by_its_compiled_size() -> None:
    """Ten thousand names in one pattern are well below the limit, four times as many are not."""
    one = routes(many(0))
    assert 10_000 < one.instructions <= LIMIT
    assert one.serves("0_product_9999_x", None)
    assert not one.serves("0_product_10000_x", None)
    assert f"more than the {LIMIT:,} allowed" in refusal(many(0, 40_000))
    assert compile_patterns([many(0, 40_000)], 2 * LIMIT)


def test_a_list_is_limited_by_its_compiled_size() -> None:
    """Four times as much as one pattern is taken, of however many patterns; more is not."""
    lists = [many(k, 1_000) for k in range(256)]
    assert routes(*lists[:80]).instructions <= 4 * LIMIT
    said = refusal(*lists)
    assert "256 patterns" in said
    assert f"more than the {4 * LIMIT:,} instructions allowed in all" in said


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a*)*c", "((a?){50}a{50}){3}", ".*.*.*x"]
)
def test_no_pattern_takes_longer_than_its_length_says(pattern: str) -> None:
    """Where backtracking would take for ever, a match is linear: ten times longer, as much more.

    The time-out of the test is the bound; ``re`` would not be done with a fiftieth of this.
    """
    one = routes(pattern)
    matcher: Matcher[Routes] = Matcher()
    matcher.add(one)
    for length in (1_000, 10_000, 100_000):
        assert not one.serves("a" * length + "!", None)
        assert matcher.matching(2, "a" * length + "!", None) == frozenset()
    assert routes("(a+)+$").serves("a" * 100_000, None)


# --- contracts --------------------------------------------------------------------------


def test_a_contract_must_agree_where_both_name_one() -> None:
    one = routes("a", "b", a="x")
    assert one.serves("a", None)
    assert one.serves("a", "x")
    assert not one.serves("a", "y")
    assert one.serves("b", "y")


def test_a_contract_is_of_the_pattern_that_matches() -> None:
    """An id that two patterns match is served under the contract of either."""
    one = Routes(2, ["a.", "ab"], {"a.": "x", "ab": "y"}, LIMIT)
    assert one.serves("ab", "x")
    assert one.serves("ab", "y")
    assert not one.serves("ac", "y")
    matcher: Matcher[Routes] = Matcher()
    matcher.add(one)
    assert matcher.matching(2, "ab", "y") == {one}
    assert matcher.matching(2, "ac", "y") == frozenset()
    assert matcher.matching(2, "ac", None) == {one}


# --- all classes at once ----------------------------------------------------------------


def test_versions_are_matched_apart() -> None:
    old, new = routes("a", version=1), routes("a", version=2)
    matcher: Matcher[Routes] = Matcher()
    matcher.add(old)
    matcher.add(new)
    matcher.add(new)
    assert matcher.matching(1, "a", None) == {old}
    assert matcher.matching(2, "a", None) == {new}
    assert matcher.matching(3, "a", None) == frozenset()
    assert set(matcher) == {old, new}
    assert len(matcher) == 2


def test_a_class_that_is_forgotten_matches_no_more() -> None:
    matcher: Matcher[Routes] = Matcher()
    one, other = routes("a"), routes("a", "b")
    matcher.discard(one)
    matcher.add(one)
    assert matcher.matching(2, "a", None) == {one}
    matcher.add(other)
    assert matcher.matching(2, "a", None) == {one, other}
    matcher.discard(one)
    matcher.discard(one)
    assert matcher.matching(2, "a", None) == {other}
    matcher.discard(other)
    assert matcher.matching(2, "a", None) == frozenset()
    assert len(matcher) == 0


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        ".",
        "a*",
        "[ab]",
        "(a|b)",
        "b?",
        r"\d",
        "(ab)+",
        "^",
        "$",
        "é",
        "[^a]",
        "a{2}",
    ]
)
PATTERNS = st.lists(PIECES, max_size=4).map("".join)
CLASSES = st.lists(
    st.tuples(
        st.lists(PATTERNS, min_size=1, max_size=3),
        st.sampled_from([None, "x", "y"]),
        st.sampled_from([1, 2]),
    ),
    max_size=6,
)
IDS = st.lists(st.text("ab1é\n", max_size=6), min_size=1, max_size=8)


def _class_of(patterns: list[str], contract: str | None, version: int) -> Routes:
    return Routes(version, patterns, {patterns[0]: contract} if contract else {}, LIMIT)


@pytest.mark.parametrize("most", [routing._SET_INSTRUCTIONS, 25, 1])
@given(classes=CLASSES, ids=IDS, contract=st.sampled_from([None, "x"]), gone=st.integers(0, 5))
@example(classes=[(["a"], "y", 2), (["a"], None, 2)], ids=["a"], contract="x", gone=5)
def test_all_at_once_is_each_by_itself(
    most: int, classes: list[Any], ids: list[str], contract: str | None, gone: int
) -> None:
    """The matcher agrees with the classes one by one, and they with ``re``, in their common part.

    However many automata it takes: with all classes in one, with a few in each, and with none.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "_SET_INSTRUCTIONS", most)
        every = [_class_of(*one) for one in classes]
        matcher: Matcher[Routes] = Matcher()
        for one in every:
            matcher.add(one)
        for left in (every, every[:gone] + every[gone + 1 :]):
            for one in set(every).difference(left):
                matcher.discard(one)
            for product_id in ids:
                for version in (1, 2):
                    found = matcher.matching(version, product_id, contract)
                    assert found == {
                        one
                        for one in left
                        if one.version == version and one.serves(product_id, contract)
                    }
    for patterns, _, _ in classes:
        for pattern in patterns:
            for product_id in ids:
                # re's "$" also matches before a last newline.
                meant = re.fullmatch(pattern.replace("$", r"\Z"), product_id, re.ASCII)
                assert matches(pattern, product_id) == (meant is not None)


def test_patterns_too_large_for_one_automaton_are_all_matched() -> None:
    """What classes come to together has no limit; RE2's automaton has one, and then says none."""
    matcher: Matcher[Routes] = Matcher()
    every = [routes(many(k), "shared", f"own_{k}") for k in range(36)]
    for one in every:
        matcher.add(one)
    assert sum(one.instructions for one in every) > 2**20
    assert matcher.matching(2, "shared", None) == set(every)
    assert matcher.matching(2, "own_7", None) == {every[7]}
    assert matcher.matching(2, "9_product_9999_x", None) == {every[9]}
    assert matcher.matching(2, "9_product_10000_x", None) == frozenset()


def test_a_class_too_large_for_any_automaton_is_matched() -> None:
    matcher: Matcher[Routes] = Matcher()
    large = routes(*(many(k) for k in range(4)))
    assert large.instructions > routing._SET_INSTRUCTIONS
    small = routes("3_product_.*")
    matcher.add(small)
    matcher.add(large)
    assert matcher.matching(2, "3_product_9999_x", None) == {large, small}
    assert matcher.matching(2, "3_product_10000_x", None) == {small}


def test_a_class_that_is_added_is_compiled_with_few_others() -> None:
    """One more class costs the automaton that takes it up, and leaves the others as they are."""
    matcher: Matcher[Routes] = Matcher()
    for k in range(8):
        matcher.add(routes(many(k)))
    matcher.matching(2, "a", None)
    before = [one._automaton for one in matcher._sets[2]]
    assert len(before) == 3
    matcher.add(routes("a"))
    assert len(matcher.matching(2, "a", None)) == 1
    after = [one._automaton for one in matcher._sets[2]]
    assert [old is new for old, new in zip(before, after, strict=True)] == [False, True, True]
