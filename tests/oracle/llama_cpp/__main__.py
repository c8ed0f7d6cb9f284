"""`python -m tests.oracle.llama_cpp`: renews what llama.cpp says of each file and holds Strata against it.

Knows the limits; exits with 1 if one is exceeded. Without llama.cpp, or with --kept, the kept records are compared.
"""

import argparse
import sys

import torch

from strata.bench.llama_cpp import HOW_TO_GET_IT, PACKAGE, LlamaCppModel, is_installed
from strata.build import load_model
from strata.settings import EngineSettings
from tests.oracle.llama_cpp import files, greedy, rows, smollm
from tests.oracle.llama_cpp.kept import Agreement
from tests.oracle.table import print_table

MEAN_KL = 2e-3
ROUNDED_RANDOM_KL = 1e-2
SAME_BEST = 0.99  # of the shipped model, over rows without a near-tie; a random model has too many of them


def compare_logits(specs: list[files.FileSpec], renew: bool) -> bool:
    """Print the table of all files; True if every limit holds."""
    table, all_kept = [["file", "rows", "road", "same best", "of clear rows", "mean KL", "largest KL", "limit"]], True
    for spec in specs:
        file = files.make(spec)
        reference = rows.write_record(spec, rows.their_logits(file, spec)) if renew else rows.read_record(spec)
        for road, found in zip(("read", "windows"), rows.measure(file, spec, reference), strict=True):
            if found is None:
                continue
            kept = is_kept(spec, found)
            all_kept = all_kept and kept
            best, verdict = f"{100 * found.same_best:.1f} %", f"{limit_of(spec):g}{'' if kept else ' EXCEEDED'}"
            clear = f"{100 * found.same_clear:.1f} % of {found.clear_rows}"
            cells = [str(found.rows), road, best, clear, f"{found.mean_kl:.1e}", f"{found.largest_kl:.1e}", verdict]
            table.append([spec.name, *cells])
            print(*table[-1], flush=True)
    print()
    print_table(table)
    return all_kept


def limit_of(spec: files.FileSpec) -> float:
    """The most that the mean KL may be. llama.cpp rounds activations to 8 bits: random models show that more."""
    return ROUNDED_RANDOM_KL if spec.family and spec.storage != "F32" else MEAN_KL


def is_kept(spec: files.FileSpec, found: Agreement) -> bool:
    """Whether a file's agreement keeps the limits."""
    return found.mean_kl <= limit_of(spec) and (bool(spec.family) or found.same_clear >= SAME_BEST)


def compare_greedy(renew: bool) -> bool:
    """Print where our greedy texts of SmolLM2 leave llama.cpp's; True if only near-ties do that."""
    file = smollm.fetch()
    if renew:
        greedy.write_record(greedy.record(LlamaCppModel(file, threads=2, context=512, exact=True)))
    loaded = load_model(file, EngineSettings(threads=1, context=512))
    texts, partings, others = greedy.read_record(), [], []
    for prompt, text in zip(greedy.PROMPTS, texts, strict=True):
        assert greedy.our_prompt_ids(loaded.tokenizer, prompt) == text.prompt_ids, f"{prompt.name}: other prompt ids"
        others += greedy.other_choices(loaded.engine, text)
        parting = greedy.find_parting(loaded.engine, text)
        if parting is not None:
            partings.append(parting)
            print(parting, flush=True)
    margins = [parting.their_margin for parting in partings] + others
    kept = max(margins, default=0.0) <= greedy.NEAR_TIE
    tokens = sum(len(text.token_ids) for text in texts)
    print(f"SmolLM2: its {tokens} tokens read at once: {len(others)} where we prefer another", end=" ")
    print(f"(llama.cpp's margins there: {', '.join(f'{margin:.2f}' for margin in sorted(others))})")
    print(f"SmolLM2: {len(texts) - len(partings)} of {len(texts)} greedy texts equal, {len(partings)} part", end=" ")
    print(f"where two logits of llama.cpp are nearer than {greedy.NEAR_TIE}: {'kept' if kept else 'EXCEEDED'}")
    return kept


def main() -> int:
    """Compare; 0 if every limit holds."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kept", action="store_true", help="compare with the records, do not run llama.cpp")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--no-greedy", action="store_true", help="leave SmolLM2's greedy texts out")
    arguments = parser.parse_args()
    renew = is_installed() and not arguments.kept
    print(f"against {PACKAGE}" if renew else f"against the records of {PACKAGE}")
    if not is_installed() and not arguments.kept:
        print(HOW_TO_GET_IT)
    torch.set_num_threads(1)
    kept = compare_logits([spec for spec in files.ALL if arguments.only in spec.name], renew)
    if not arguments.no_greedy:
        kept = compare_greedy(renew) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
