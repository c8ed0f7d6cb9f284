"""`strata convert`: a published model directory as one GGUF file of a chosen type.

Knows the command; which keys and tensors a file gets is decided in `gguf_keys` and `gguf_plan`.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from strata.cli.console import printable, progress_bar
from strata.cli.flags import GivenPath
from strata.cli.gguf_keys import architecture_for, heads_of, llama_cpp_problems, model_pairs
from strata.cli.gguf_plan import check_type, plan_tensors
from strata.cli.model_report import gib
from strata.errors import ModelError
from strata.models.families import family_of
from strata.models.qwen4_exp_config import Qwen4ExpConfig
from strata.text.gguf_vocabulary import tokenizer_pairs, without_tokenizer
from strata.text.text_facts import end_ids_problem
from strata.text.tokenizer import read_tokenizer_files
from strata.types import ProgressCallback
from strata.weights.fit import require_fit
from strata.weights.gguf import is_gguf
from strata.weights.gguf_writer import write_gguf
from strata.weights.safetensors import open_model


def convert(
    directory: GivenPath,
    out: GivenPath,
    /,
    *,
    storage: Annotated[str, Parameter(name="--type")] = "Q4_K",
) -> None:
    """Write a model directory as a GGUF file, which Strata and llama.cpp load.

    Parameters
    ----------
    directory
        A model directory with safetensors files.
    out
        The file to write, as in model.gguf; it must not exist, its folder must.
    storage
        How the large matrices are stored: Q4_K, Q8_0, Q2_0, BF16, ...; what is small stays in 32 bits, and rows that
        are too short for a type take the nearest one that fits.
    """
    with progress_bar() as report:
        facts = convert_model(directory, out, storage, report)
    console = Console(stderr=True, highlight=False)
    for sentence in facts:
        console.print(Text(printable(sentence)), soft_wrap=True)


def convert_model(
    directory: Path, out: Path, storage: str, on_progress: ProgressCallback | None = None
) -> tuple[str, ...]:
    """Write the file; returns what there is to say about it, in sentences.

    Raises SettingsError for a type that cannot be written and ModelError for a model that the format cannot hold.
    """
    type_name = check_type(storage)
    if is_gguf(directory):
        raise ModelError(f"{directory} is a GGUF file already; strata convert takes a directory of safetensors files")
    source = open_model(directory)
    family = family_of(source.config)
    config = family.parse_config(source.config)
    shapes = {name: shape for name, shape in family.expected_tensors(config).items() if not name.startswith("mtp.")}
    require_fit(source, shapes)
    architecture = architecture_for(config)
    ngram_layer = next(iter(config.ngrams), None) if isinstance(config, Qwen4ExpConfig) else None
    text = source.config.get("text_config") or source.config
    sections = (text.get("rope_parameters") or text.get("rope_scaling") or {}).get("mrope_section")
    pairs = model_pairs(config, directory.resolve().name, type_name, sections)
    has_tokenizer = (directory / "tokenizer.json").is_file()
    pairs += tokenizer_pairs(directory, config.vocabulary_size) if has_tokenizer else without_tokenizer()
    tensors = plan_tensors(source, architecture, heads_of(config), config.num_layers, ngram_layer, type_name)
    total, done = sum(tensor.stored_bytes for tensor in tensors), 0

    def advance(count: int, _: str) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress("writing", done, total)

    size = write_gguf(out, pairs, tensors, advance)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + tensor.stored_bytes
    kinds = ", ".join(f"{gib(count)} {name}" for name, count in sorted(sizes.items(), key=lambda item: -item[1]))
    sentences = [f"wrote {out}: {len(tensors):,} tensors, {gib(size)} ({kinds})"]
    sentences += llama_cpp_problems(config)
    ends = {*config.end_of_text_ids, *(read_tokenizer_files(directory).end_of_text_ids if has_tokenizer else ())}
    if problem := end_ids_problem(ends, config.vocabulary_size):
        sentences.append(f"warning: {problem}")
    if not has_tokenizer:
        sentences.append("note: the directory has no tokenizer, so the file has none: it cannot be talked to")
    if any(name.startswith("mtp.") for name in source.names()):
        sentences.append("note: the draft layer (MTP) is left out: GGUF files of this kind have no place for it")
    return tuple(sentences)
