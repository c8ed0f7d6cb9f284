"""Knows how packages, manuals, dictionary and tokenizer come together into the files the trainer reads.
Does not know the model or how it is trained. Run: python -m training.prepare --out build/corpus [--debs FOLDER]
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.corpus import (
    DICTIONARY_PACKAGE,
    MANUAL_PACKAGES,
    SOURCES,
    Document,
    Package,
    read_documents,
    split_documents,
    unpack,
)
from training.dictionary import (
    PART_OF_SPEECH_NAMES,
    QUESTION_TEMPLATES,
    Entry,
    answer_middle,
    choose_entries,
    read_wordnet,
)
from training.extras import read_extras
from training.tokenizer import (
    CONTEXT_TOKENS,
    CONTROL_TOKENS,
    END_OF_TEXT,
    MARK_TOKENS,
    TURN_END,
    TURN_START,
    VOCABULARY_SIZE,
    chat_text,
    train_tokenizer,
    write_tokenizer,
)

SHIPPED_FOLDER = Path("src/strata/models_shipped/pocket")


@dataclass(frozen=True)
class DictionaryPieces:
    """Token ids from which any dictionary chat is put together by concatenation.

    The pieces are cut where the tokenizer's splitting rule always cuts: at control tokens, before a blank that
    starts a word, between a letter and punctuation. `verify_pieces` holds that against whole chats.
    """

    word_at_start: list[list[int]]  # [words] ids of `harbour`
    word_after_blank: list[list[int]]  # [words] ids of ` harbour`
    gloss: list[list[int]]  # [words] ids of ` a sheltered port ...`
    answer_middle: list[list[int]]  # [parts of speech] ids of ` (noun):`
    question_before: list[list[int]]  # [templates] ids of `<|im_start|>user\nWhat does`
    question_after: list[list[int]]  # [templates] ids of ` mean?<|im_end|>\n<|im_start|>assistant\n`
    answer_end: list[int]  # ids of `<|im_end|>\n`

    def chat(self, word: int, part_of_speech: int, template: int) -> tuple[list[int], int]:
        """(ids of the whole chat, index at which the answer begins)."""
        after_blank = QUESTION_TEMPLATES[template].before.endswith(" ")
        asked = (self.word_after_blank if after_blank else self.word_at_start)[word]
        question = self.question_before[template] + asked + self.question_after[template]
        answer = self.word_at_start[word] + self.answer_middle[part_of_speech] + self.gloss[word]
        return question + answer + self.answer_end, len(question)


def _encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def dictionary_pieces(tokenizer: Tokenizer, entries: Sequence[Entry]) -> DictionaryPieces:
    """Encodes every piece on its own; the blank before a word belongs to the word's piece."""
    asks = [f"{TURN_START}user\n{template.before.removesuffix(' ')}" for template in QUESTION_TEMPLATES]
    replies = [f"{template.after}{TURN_END}\n{TURN_START}assistant\n" for template in QUESTION_TEMPLATES]
    middles = [answer_middle(part_of_speech).rstrip() for part_of_speech in range(len(PART_OF_SPEECH_NAMES))]
    return DictionaryPieces(
        word_at_start=_encode(tokenizer, (entry.word for entry in entries)),
        word_after_blank=_encode(tokenizer, (" " + entry.word for entry in entries)),
        gloss=_encode(tokenizer, (" " + entry.gloss for entry in entries)),
        answer_middle=_encode(tokenizer, middles),
        question_before=_encode(tokenizer, asks),
        question_after=_encode(tokenizer, replies),
        answer_end=_encode(tokenizer, [f"{TURN_END}\n"])[0],
    )


def verify_pieces(tokenizer: Tokenizer, entries: Sequence[Entry], pieces: DictionaryPieces) -> float:
    """Asserts for every word and template that the pieces equal the encoded chat; returns mean tokens of a chat,
    templates weighted as they are asked."""
    mean_tokens = 0.0
    for number, template in enumerate(QUESTION_TEMPLATES):
        whole = _encode(tokenizer, (chat_text(template.question(entry.word), entry.answer) for entry in entries))
        for word, (entry, expected) in enumerate(zip(entries, whole, strict=True)):
            composed, _ = pieces.chat(word, entry.part_of_speech, number)
            assert composed == expected, f"pieces of {entry.word!r} in template {number} differ from the encoded chat"
        mean_tokens += template.weight * sum(map(len, whole)) / len(whole)
    return mean_tokens


def mean_answer_tokens(entries: Sequence[Entry], pieces: DictionaryPieces) -> float:
    """Mean tokens of an answer, the end of its turn not counted."""
    middles = (len(pieces.answer_middle[entry.part_of_speech]) for entry in entries)
    return (sum(map(len, pieces.word_at_start)) + sum(middles) + sum(map(len, pieces.gloss))) / len(entries)


def flat(lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(all ids in a row as uint16 [total], offsets uint32 [lists + 1]); list i is ids[offsets[i]:offsets[i + 1]]."""
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.uint32)
    return np.fromiter((token for ids in lists for token in ids), dtype=np.uint16, count=int(offsets[-1])), offsets


def write_dictionary(path: Path, entries: Sequence[Entry], pieces: DictionaryPieces) -> None:
    """Writes dictionary.npz: `<piece>_ids` and `<piece>_offsets` of every piece, and per word and template facts."""
    arrays: dict[str, np.ndarray] = {
        "part_of_speech": np.array([entry.part_of_speech for entry in entries], dtype=np.uint8),
        "template_weights": np.array([template.weight for template in QUESTION_TEMPLATES], dtype=np.float64),
        "template_word_after_blank": np.array([template.before.endswith(" ") for template in QUESTION_TEMPLATES]),
        "answer_end_ids": np.array(pieces.answer_end, dtype=np.uint16),
    }
    for name in ("word_at_start", "word_after_blank", "gloss", "answer_middle", "question_before", "question_after"):
        arrays[f"{name}_ids"], arrays[f"{name}_offsets"] = flat(getattr(pieces, name))
    np.savez(path, allow_pickle=False, **arrays)


def write_manuals(out: Path, name: str, documents: Sequence[Document], tokenizer: Tokenizer) -> dict[str, int]:
    """Writes manuals_<name>.npy (uint16 ids; END_OF_TEXT before every document), its text and its size facts."""
    end_of_text = CONTROL_TOKENS.index(END_OF_TEXT)
    texts = [document.text for document in documents]
    encoded = _encode(tokenizer, texts)
    ids, _ = flat([[end_of_text, *document_ids] for document_ids in encoded])
    np.save(out / f"manuals_{name}.npy", ids)
    size = {
        "documents": len(documents),
        "bytes": sum(len(text.encode()) for text in texts),
        "tokens": sum(map(len, encoded)),
        "tokens_with_end_of_text": len(ids),
    }
    (out / f"manuals_{name}_bytes.json").write_text(json.dumps(size, indent=2) + "\n")
    return size


def write_text(folder: Path, name: str, documents: Sequence[Document]) -> None:
    """Writes the same documents as UTF-8 text, and the list of their paths, for people and for `training.ppmd`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"manuals_{name}.txt").write_text("".join(document.text for document in documents), "utf-8")
    (folder / f"manuals_{name}.list").write_text("".join(document.path + "\n" for document in documents))


def write_extras(
    out: Path, text: Path, debs: Path, split: tuple[list[Document], list[Document]], tokenizer: Tokenizer
) -> tuple[dict[str, int], dict[str, dict[str, object]]]:
    """Writes manuals_extra.*, further text for training only; returns its size facts and those of every package.

    `split` is (train, held-out): nothing of either stands in the extras. The tokenizer has not seen them.
    """
    documents: list[Document] = []
    packages: dict[str, dict[str, object]] = {}
    for extra in read_extras(*split, debs, text / "unpacked"):
        documents.extend(extra.documents)
        tokens = sum(map(len, _encode(tokenizer, (document.text for document in extra.documents))))
        facts = {"documents": len(extra.documents), "tokens": tokens}
        packages[extra.package.name] = {"version": extra.package.version, "licence": extra.package.licence, **facts}
        print(f"  {extra.package.name} ({extra.package.licence}): {facts}", flush=True)
    write_text(text, "extra", documents)
    return write_manuals(out, "extra", documents, tokenizer), packages


def _write_meta(out: Path, packages: Sequence[Package], facts: dict[str, object]) -> None:
    files = sorted(path for path in out.iterdir() if path.name != "meta.json")
    hashes = {path.name: sha256(path.read_bytes()).hexdigest() for path in files}
    content = {
        "vocabulary_size": VOCABULARY_SIZE,
        "context_tokens": CONTEXT_TOKENS,
        "special_ids": {token: number for number, token in enumerate([*CONTROL_TOKENS, *MARK_TOKENS])},
        "parts_of_speech": PART_OF_SPEECH_NAMES,
        "templates": [[template.before, template.after, template.weight] for template in QUESTION_TEMPLATES],
        **facts,
        "packages": {package.name: {"version": package.version, "licence": package.licence} for package in packages},
        "sha256": hashes,
    }
    (out / "meta.json").write_text(json.dumps(content, indent=2) + "\n")


def prepare(out: Path, debs: Path, text: Path, shipped: Path) -> None:
    """Does everything; the same packages give the same bytes."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {message}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    packages = [unpack(name, debs, text / "unpacked") for name in (DICTIONARY_PACKAGE, *MANUAL_PACKAGES)]
    folders = {package.name: package.folder for package in packages}
    say("unpacked " + ", ".join(f"{package.name} ({package.licence})" for package in packages))
    entries = choose_entries(read_wordnet(folders[DICTIONARY_PACKAGE] / "usr/share/wordnet"))
    say(f"dictionary: {len(entries)} headwords")
    train, heldout = split_documents(
        document for source in SOURCES for document in read_documents(source, folders[source.package])
    )
    say(f"manuals: {len(train)} documents to train on, {len(heldout)} held out")
    most_asked = max(QUESTION_TEMPLATES, key=lambda template: template.weight)
    tokenizer = train_tokenizer(
        (document.text for document in train), ((most_asked.question(entry.word), entry.answer) for entry in entries)
    )
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE, tokenizer.get_vocab_size()
    write_tokenizer(tokenizer, shipped)
    (shipped / "dictionary.txt").write_text("".join(sorted(entry.word + "\n" for entry in entries)))
    (out / "tokenizer.json").write_bytes((shipped / "tokenizer.json").read_bytes())
    say(f"tokenizer: {VOCABULARY_SIZE} ids, written to {shipped}")
    sizes = {}
    for name, documents in (("train", train), ("heldout", heldout)):
        write_text(text, name, documents)
        sizes[name] = write_manuals(out, name, documents, tokenizer)
        say(f"manuals {name}: {sizes[name]}, {sizes[name]['bytes'] / sizes[name]['tokens']:.3f} bytes a token")
    sizes["extra"], extra_packages = write_extras(out, text, debs, (train, heldout), tokenizer)
    say(f"manuals extra: {sizes['extra']}, {sizes['extra']['bytes'] / sizes['extra']['tokens']:.3f} bytes a token")
    pieces = dictionary_pieces(tokenizer, entries)
    mean_tokens = verify_pieces(tokenizer, entries, pieces)
    write_dictionary(out / "dictionary.npz", entries, pieces)
    answers = [{"word": entry.word, "answer": entry.answer} for entry in entries]
    (out / "answers.json").write_text(json.dumps(answers, ensure_ascii=False, separators=(",", ":")), "utf-8")
    dictionary = {
        "headwords": len(entries),
        "mean_chat_tokens": round(mean_tokens, 3),
        "mean_answer_tokens": round(mean_answer_tokens(entries, pieces), 3),
        "mean_gloss_characters": round(sum(len(entry.gloss) for entry in entries) / len(entries), 3),
    }
    say(f"dictionary: every chat equals its pieces; {dictionary}")
    _write_meta(out, packages, {"manuals": sizes, "dictionary": dictionary, "extra_packages": extra_packages})
    say(f"done: {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB in {out}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="training.prepare", description="make the shipped model's training data")
    parser.add_argument("--out", type=Path, default=Path("build/corpus"), help="token files for the trainer")
    parser.add_argument("--debs", type=Path, default=Path("build/debs"), help="downloaded .deb files, used and kept")
    parser.add_argument("--text", type=Path, default=Path("build/corpus_text"), help="unpacked packages, plain text")
    parser.add_argument("--shipped", type=Path, default=SHIPPED_FOLDER, help="tokenizer, chat template, headwords")
    arguments = parser.parse_args()
    prepare(arguments.out, arguments.debs, arguments.text, arguments.shipped)


if __name__ == "__main__":
    main()
