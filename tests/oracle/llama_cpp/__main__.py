"""`python -m tests.oracle.llama_cpp`: renews what llama.cpp says of each file and holds Strata against it.

Knows the order of work and the tables; exits with 1 if a limit is exceeded. Without llama.cpp, or with --kept, the
kept records are compared.
"""

import argparse
import sys

import torch

from strata.bench.llama_cpp import HOW_TO_GET_IT, PACKAGE, LlamaCppModel, is_installed
from strata.build import load_model
from strata.settings import EngineSettings
from tests.oracle.llama_cpp import comparison, files, greedy, rows, smollm
from tests.oracle.llama_cpp.kept import Agreement
from tests.oracle.table import print_table

HEADING = [
    "file",
    "rows",
    "road",
    "same best",
    "of clear rows",
    "parting",
    "mean KL",
    "median",
    "largest",
    "flips",
    "without",
]


def compare_logits(specs: list[files.FileSpec], renew: bool) -> bool:
    """Print the table of all files; True if every limit holds."""
    table, all_said = [HEADING], []
    for spec in specs:
        file = files.make(spec)
        record = rows.write_record(spec, rows.theirs(file, spec)) if renew else rows.read_record(spec)
        found = comparison.compare(file, spec, record)
        for road, each in vars(found).items():
            if each is not None:
                table.append([spec.name, str(each.rows), road.replace("_", " - "), *_cells(each)])
        print(spec.name, flush=True)
        said = [f"{spec.name}: {sentence}" for sentence in comparison.problems(spec, found)]
        all_said += said
        print(*said, sep="\n", end="\n" if said else "")
    print()
    print_table(table)
    print("\nKL of the second road from the first; flips: choices of experts (row, layer) that differ; without: mean")
    print(
        "KL of the rows that have none; parting: the first road's largest margin (nats) where the second says another"
    )
    print(f"token. {_limits()}: ", end="")
    print("kept" if not all_said else "\n".join(["EXCEEDED", *all_said]))
    return not all_said


def _cells(found: Agreement) -> list[str]:
    clear = f"{100 * found.same_clear:.1f} % of {found.clear_rows}"
    without = f"{found.unflipped_kl:.1e} of {found.unflipped_rows}"
    best = f"{100 * found.same_best:.1f} %"
    divergences = [f"{each:.1e}" for each in (found.mean_kl, found.median_kl, found.largest_kl)]
    return [best, clear, f"{found.widest_parting:.2f}", *divergences, str(found.flips), without]


def _limits() -> str:
    return (
        f"Limits: mean KL {comparison.MEAN_KL:g} ({comparison.FLOAT_KL:g} in F32, "
        f"{comparison.PUBLISHED_KL:g} of SmolLM2), from llama.cpp the sum of both "
        f"distances from exact where that is more; in the median of rows windows are at most {comparison.NO_FARTHER:g} "
        "times as far from exact as llama.cpp"
    )


def compare_greedy(renew: bool) -> bool:
    """Print where our greedy texts of SmolLM2 leave llama.cpp's; True if only near-ties do that."""
    file = smollm.fetch()
    if renew:
        greedy.write_record(greedy.record(LlamaCppModel(file, threads=1, context=512, exact=True)))
    loaded = load_model(file, EngineSettings(threads=1, context=512, kv_kind="f32"))
    texts, partings = greedy.read_record(), []
    for prompt, text in zip(greedy.PROMPTS, texts, strict=True):
        assert greedy.our_prompt_ids(loaded.tokenizer, prompt) == text.prompt_ids, f"{prompt.name}: other prompt ids"
        parting = greedy.find_parting(loaded.engine, text)
        if parting is not None:
            partings.append(parting)
            print(parting, flush=True)
    kept = max((parting.their_margin for parting in partings), default=0.0) <= greedy.NEAR_TIE
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
    kept = arguments.no_greedy or compare_greedy(renew)
    kept = compare_logits([spec for spec in files.ALL if arguments.only in spec.name], renew) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
