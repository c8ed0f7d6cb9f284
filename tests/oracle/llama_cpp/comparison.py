"""One file's four roads beside each other, and the limits that they must keep.

llama.cpp and our windows both round activations to 8 bits, each in its own order, so each has a distance from the
exact road and the two distances add up between them: what ours may be is measured against what llama.cpp's is.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.oracle.llama_cpp import greedy, rows
from tests.oracle.llama_cpp.files import FileSpec, Weights
from tests.oracle.llama_cpp.kept import Agreement, agree, keep

MEAN_KL = 2e-3
PUBLISHED_KL = 4e-3  # of SmolLM2 in Q4_1: llama.cpp itself is 2.7e-3 from the exact road, in thirty layers of rounding
FLOAT_KL = 1e-7  # where llama.cpp rounds no activation either
SAME_BEST = 0.99  # over rows without a near-tie; a random model has too many of them
NO_FARTHER = 1.5  # times llama.cpp's own distance from the exact road, in the median: flips are chance and few
ROUNDING_OF_RECORD = 1e-8  # the KL that a record's own steps make


@dataclass(frozen=True)
class Comparison:
    """How far the roads of one file are from each other. The first named is the reference of the second."""

    theirs_read: Agreement
    theirs_exact: Agreement
    theirs_windows: Agreement | None  # None: the C++ library is not here
    exact_windows: Agreement | None


def compare(file: Path, spec: FileSpec, record: rows.Record) -> Comparison:
    """Compute our roads of a file and hold them against what llama.cpp gave."""
    exact, read, windows = rows.exact(file, spec), rows.read(file, spec), rows.windows(file, spec)
    kept_exact = rows.Record(keep(exact.logits, spec.kept), exact.routes)
    return Comparison(
        theirs_read=_agree(record, read),
        theirs_exact=_agree(record, exact),
        theirs_windows=None if windows is None else _agree(record, windows),
        exact_windows=None if windows is None else _agree(kept_exact, windows),
    )


def problems(spec: FileSpec, found: Comparison) -> list[str]:
    """Sentences about the limits that are exceeded."""
    said, most = [], PUBLISHED_KL if spec.weights is Weights.SMOLLM else MEAN_KL
    for name, each in (("read", found.theirs_read), ("windows", found.theirs_windows)):
        if each is None:
            continue
        limit = FLOAT_KL if spec.storage == "F32" else max(most, both_distances(found))
        if each.mean_kl > limit:
            said.append(f"{name} are {each.mean_kl:.1e} from llama.cpp, the limit is {limit:.1e}")
        if spec.weights in (Weights.SHIPPED, Weights.SMOLLM) and each.same_clear < SAME_BEST:
            said.append(f"{name} say llama.cpp's token in {100 * each.same_clear:.1f} % of the clear rows")
        if spec.weights is Weights.SMOLLM and each.widest_parting > greedy.NEAR_TIE:
            said.append(f"{name} say another token where llama.cpp's leads by {each.widest_parting:.2f} nats")
    if found.theirs_exact.mean_kl > most:  # more than any rounding makes: two different models
        said.append(f"the exact road is {found.theirs_exact.mean_kl:.1e} from llama.cpp, the limit is {most:g}")
    if found.exact_windows is not None:
        said += _distance_problems(found.exact_windows, found.theirs_exact, most)
    return said


def both_distances(found: Comparison) -> float:
    """llama.cpp's mean KL from the exact road and ours: two roundings that know nothing of each other add up to it."""
    return found.theirs_exact.mean_kl + (found.exact_windows.mean_kl if found.exact_windows is not None else 0.0)


def _distance_problems(ours: Agreement, theirs: Agreement, most: float) -> list[str]:
    said = []
    if ours.mean_kl > most:
        said.append(f"windows are {ours.mean_kl:.1e} from the exact road, the limit is {most:g}")
    if ours.median_kl > NO_FARTHER * theirs.median_kl + ROUNDING_OF_RECORD:
        said.append(f"windows are {ours.median_kl:.1e} from the exact road, llama.cpp {theirs.median_kl:.1e} (median)")
    return said


def _agree(reference: rows.Record, road: rows.Road) -> Agreement:
    flipped = (reference.routes != road.routes).any(axis=2) if len(road.routes) else None
    return agree(reference.kept, road.logits, flipped)
