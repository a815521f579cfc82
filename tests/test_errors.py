"""What a message suggests."""

from anchorlens.errors import did_you_mean


def test_what_is_spelt_alike_or_has_the_word_as_a_part():
    assert did_you_mean("popqq", ["popqa", "nq"]) == "Did you mean 'popqa'?"
    assert did_you_mean("xyz", ["popqa", "nq"]) == "Known: nq, popqa."
    assert did_you_mean("", ["b_c", "a"]) == "Known: a, b_c."
    many = did_you_mean("xyz", [f"{k:04d}" for k in range(2000)])
    assert many.startswith("Known: 0000, 0001,")
    assert many.endswith(", 0039, and 1960 more.")
    # What has the word as a part comes first.
    assert (
        did_you_mean("site", ["split", "probe_site", "seed"])
        == "Did you mean 'probe_site' or 'split'?"
    )
    assert (
        did_you_mean("rest", ["exact_question", "question_rest"]) == "Did you mean 'question_rest'?"
    )
    # Three at most.
    assert (
        did_you_mean("a", ["a_b", "a_c", "a_d", "a_e"]) == "Did you mean 'a_b' or 'a_c' or 'a_d'?"
    )
