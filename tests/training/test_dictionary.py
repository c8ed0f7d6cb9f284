"""Knows a few lines of WordNet and the entries they must give. Does not know the whole dictionary."""

import pytest

from training.dictionary import (
    QUESTION_TEMPLATES,
    WordNet,
    choose_entries,
    clean_gloss,
    parse_counts,
    parse_index,
    parse_synsets,
)

INDEX = [
    "  1 This software and database is being provided to you",
    "harbor n 2 5 @ ~ #p %p + 2 1 08639058 03492250  ",
    "harbour n 2 5 @ ~ #p %p + 2 0 08639058 03492250  ",
    "harbor_seal n 1 2 @ #m 1 0 02079851  ",
    "aeschylus n 1 1 @ 1 0 10800000  ",
]
DATA = [
    "08639058 15 n 04 seaport 0 haven 0 harbor 0 harbour 0 001 @ 08633957 n 0000 | a sheltered port where ships can "
    'take on or discharge cargo; "they came in"  ',
    "03492250 06 n 02 harbor 0 harbour 0 001 @ 04071102 n 0000 | a place of refuge and comfort and security  ",
    "10800000 18 n 01 Aeschylus 0 001 @ 10800001 n 0000 | Greek tragedian  ",
]
VERB_INDEX = ["harbour v 1 2 @ + 1 0 02350083  "]
VERB_DATA = ["02350083 40 v 01 harbour 0 000 01 + 08 00 | keep in one's possession  "]


def _wordnet() -> WordNet:
    synsets = parse_synsets(DATA, 0) | parse_synsets(VERB_DATA, 1)
    return WordNet(
        senses=parse_index(INDEX, 0) | parse_index(VERB_INDEX, 1),
        glosses={name: gloss for name, (gloss, _) in synsets.items()},
        spellings={name: words for name, (_, words) in synsets.items()},
        counts=parse_counts(["harbor%1:15:00:: 1 8", "harbor%1:06:00:: 2 1"]),
    )


def test_spelling_variant_shares_the_tags_of_its_synset_and_takes_its_first_sense() -> None:
    harbor, harbour = choose_entries(_wordnet(), wanted=2)
    assert (harbor.word, harbour.word) == ("harbor", "harbour")
    assert harbour.answer == "harbour (noun): a sheltered port where ships can take on or discharge cargo"


def test_names_and_phrases_are_no_headwords() -> None:
    with pytest.raises(ValueError, match="2 headwords"):
        choose_entries(_wordnet(), wanted=3)


def test_gloss_is_the_definition_without_examples_label_or_far_too_long_parts() -> None:
    assert clean_gloss('(nautical) a place of refuge (as for a ship); "safe"') == "a place of refuge (as for a ship)"
    assert clean_gloss("often followed by `to'; " + "very long " * 12) == "often followed by 'to'"
    assert clean_gloss("long " * 40) is None


def test_template_weights_add_up_and_the_plain_question_is_half() -> None:
    assert sum(template.weight for template in QUESTION_TEMPLATES) == pytest.approx(1)
    assert (
        QUESTION_TEMPLATES[0].question("harbour") == "What does harbour mean?" and QUESTION_TEMPLATES[0].weight == 0.5
    )
