"""Knows WordNet 3.0's files, how headwords and glosses are chosen, and how a question about a word is put.
Does not know tokens, chat mark-up, or the manuals. Source: the manual pages wndb(5WN), cntlist(5WN), senseidx(5WN).
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEADWORDS = 20_480
PREFERRED_GLOSS_CHARACTERS = 110
MAX_GLOSS_CHARACTERS = 130
# Tags of a synset's other lemmas count half: `harbour` is never tagged itself and lives on what `harbor` got.
SHARED_COUNT_WEIGHT = 0.5

PART_OF_SPEECH_NAMES = ("noun", "verb", "adjective", "adverb")
PART_OF_SPEECH_FILES = ("noun", "verb", "adj", "adv")
_SYNSET_TYPES = {"1": 0, "2": 1, "3": 2, "4": 3, "5": 2}  # 5: adjective satellite
_HEADWORD = re.compile(r"[a-z]+(?:-[a-z]+)*")
_FIRST_EXAMPLE = re.compile(r'[;:,]?\s*"')
_LEADING_LABEL = re.compile(r"^\([^()]*\)\s*(?=.{12})")

_SLUR = re.compile(
    r"ethnic slur|(?:offensive|disparaging|derogatory|insulting|contemptuous|obscene)(?: \w+)? (?:name|term|word)s?\b"
)


@dataclass(frozen=True)
class Entry:
    """One headword: the word, an index into PART_OF_SPEECH_NAMES, and the gloss of its first sense."""

    word: str
    part_of_speech: int
    gloss: str

    @property
    def answer(self) -> str:
        """What the model answers: `harbour (noun): a sheltered port ...`."""
        return self.word + answer_middle(self.part_of_speech) + self.gloss


def answer_middle(part_of_speech: int) -> str:
    """The text between word and gloss in an answer."""
    return f" ({PART_OF_SPEECH_NAMES[part_of_speech]}): "


@dataclass(frozen=True)
class QuestionTemplate:
    """A question is before + word + after; `weight` is its share among questions (all weights add up to 1)."""

    before: str
    after: str
    weight: float

    def question(self, word: str) -> str:
        return self.before + word + self.after


QUESTION_TEMPLATES = (
    QuestionTemplate("What does ", " mean?", 0.50),
    QuestionTemplate("What is the meaning of ", "?", 0.10),
    QuestionTemplate("Define ", ".", 0.10),
    QuestionTemplate("What is ", "?", 0.08),
    QuestionTemplate("", "", 0.08),
    QuestionTemplate("Meaning of ", "?", 0.05),
    QuestionTemplate("What does the word ", " mean?", 0.05),
    QuestionTemplate("define ", "", 0.04),
)


@dataclass(frozen=True)
class WordNet:
    """The parts of WordNet that are used. A synset is named by (part of speech, offset in its data file)."""

    senses: dict[tuple[str, int], list[int]]  # (lemma, part of speech) -> synset offsets, first sense first
    glosses: dict[tuple[int, int], str]
    spellings: dict[tuple[int, int], frozenset[str]]  # the synset's words as they are written, capitals included
    counts: dict[tuple[str, int, int], int]  # (lemma, part of speech, sense number from 1) -> tags


def parse_index(lines: Iterable[str], part_of_speech: int) -> dict[tuple[str, int], list[int]]:
    """Senses of every headword-shaped lemma of an index file. Line: lemma pos n p_cnt ptrs n tagged offsets..."""
    senses: dict[tuple[str, int], list[int]] = {}
    for line in lines:
        fields = line.split()
        if not line.startswith(" ") and fields and _HEADWORD.fullmatch(fields[0]):
            senses[fields[0], part_of_speech] = [int(offset) for offset in fields[-int(fields[2]) :]]
    return senses


def parse_synsets(lines: Iterable[str], part_of_speech: int) -> dict[tuple[int, int], tuple[str, frozenset[str]]]:
    """Raw gloss (examples included) and words of every synset of a data file.

    Line: offset file type word_count(hex) word id word id ... | gloss; an adjective may carry a mark such as (a).
    """
    synsets: dict[tuple[int, int], tuple[str, frozenset[str]]] = {}
    for line in lines:
        if not line.startswith(" "):
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            synsets[part_of_speech, int(fields[0])] = (gloss.strip(), frozenset(w.partition("(")[0] for w in words))
    return synsets


def parse_counts(lines: Iterable[str]) -> dict[tuple[str, int, int], int]:
    """Tags of every sense in cntlist.rev. Line: lemma%type:file:id:head:id sense_number count"""
    counts: dict[tuple[str, int, int], int] = {}
    for line in lines:
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        if _HEADWORD.fullmatch(lemma):
            counts[lemma, _SYNSET_TYPES[rest[0]], int(sense)] = int(count)
    return counts


def read_wordnet(folder: Path) -> WordNet:
    """Reads index.*, data.* and cntlist.rev of a WordNet 3.0 dictionary folder."""
    senses: dict[tuple[str, int], list[int]] = {}
    synsets: dict[tuple[int, int], tuple[str, frozenset[str]]] = {}
    for part_of_speech, name in enumerate(PART_OF_SPEECH_FILES):
        senses.update(parse_index((folder / f"index.{name}").read_text("ascii").splitlines(), part_of_speech))
        synsets.update(parse_synsets((folder / f"data.{name}").read_text("ascii").splitlines(), part_of_speech))
    return WordNet(
        senses,
        {synset: gloss for synset, (gloss, _) in synsets.items()},
        {synset: words for synset, (_, words) in synsets.items()},
        parse_counts((folder / "cntlist.rev").read_text("ascii").splitlines()),
    )


def clean_gloss(raw: str) -> str | None:
    """The definition alone, at most MAX_GLOSS_CHARACTERS; None when no part of it is short enough.

    Examples and a leading label in parentheses go; a definition over PREFERRED_GLOSS_CHARACTERS is cut at a `;`.
    """
    definition = _FIRST_EXAMPLE.split(raw, maxsplit=1)[0].strip(" ;")
    definition = _LEADING_LABEL.sub("", definition).replace("`", "'").strip(" ;")
    while len(definition) > PREFERRED_GLOSS_CHARACTERS and ";" in definition:
        definition = definition.rpartition(";")[0].strip(" ;")
    shortened = " ".join(definition.split())
    return shortened if 3 <= len(shortened) <= MAX_GLOSS_CHARACTERS else None


def choose_entries(wordnet: WordNet, wanted: int = HEADWORDS) -> list[Entry]:
    """The `wanted` most frequent headwords that have a short gloss, most frequent first.

    The score of a word is its own tags plus SHARED_COUNT_WEIGHT of the tags of its synsets' other lemmas; ties go
    to the shorter word, then to the alphabet. Its part of speech is the one with most tags of its own, then the one
    whose first synset has most tags. Names (capitals in that synset) and slurs are left out. ValueError: too few words.
    """
    synset_counts: dict[tuple[int, int], int] = defaultdict(int)
    own_counts: dict[tuple[str, int], int] = defaultdict(int)
    for (lemma, part_of_speech), offsets in wordnet.senses.items():
        for number, offset in enumerate(offsets, 1):
            count = wordnet.counts.get((lemma, part_of_speech, number), 0)
            synset_counts[part_of_speech, offset] += count
            own_counts[lemma, part_of_speech] += count
    scores: dict[str, float] = defaultdict(float)
    best: dict[str, tuple[int, int, int]] = {}  # word -> (own tags, tags of the first synset, part of speech)
    for (lemma, part_of_speech), offsets in wordnet.senses.items():
        own = own_counts[lemma, part_of_speech]
        together = sum(synset_counts[part_of_speech, offset] for offset in offsets)
        scores[lemma] += own + SHARED_COUNT_WEIGHT * (together - own)
        candidate = (own, synset_counts[part_of_speech, offsets[0]], part_of_speech)
        if lemma not in best or candidate[:2] > best[lemma][:2]:
            best[lemma] = candidate
    entries: list[Entry] = []
    for word in sorted(scores, key=lambda word: (-scores[word], len(word), word)):
        part_of_speech = best[word][2]
        synset = part_of_speech, wordnet.senses[word, part_of_speech][0]
        raw = wordnet.glosses[synset]
        gloss = None if _SLUR.search(raw) else clean_gloss(raw)
        if len(word) >= 2 and gloss is not None and word in wordnet.spellings[synset]:
            entries.append(Entry(word, part_of_speech, gloss))
        if len(entries) == wanted:
            return entries
    raise ValueError(f"WordNet gave {len(entries)} headwords with a short gloss; {wanted} are wanted")
