"""`strata synth`: writes a model of random weights, of any supported family and size, as the hub would publish it.

Knows how a preset or another model's config becomes a plan; names, values and files are made in `weights`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text
from tokenizers import Tokenizer

from strata import models_shipped
from strata.cli.console import printable, progress_bar
from strata.cli.flags import GivenPath, WholeNumber
from strata.cli.model_report import gib
from strata.cli.synth_gguf import write_random_gguf
from strata.errors import ConfigError, SettingsError, TextError
from strata.models.config_fields import MOST_LAYERS
from strata.models.families import Family, family_of
from strata.models.qwen4_exp_config import Qwen4ExpConfig
from strata.weights import presets
from strata.weights.directory import CONFIG_NAME, read_config
from strata.weights.json_files import load_json_object
from strata.weights.synthetic import PublishedStyle, plan_tensors
from strata.weights.synthetic_blocks import check_block_type
from strata.weights.writer import new_directory, write_json, write_weights

_TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def synth(
    family: str | None = None,
    out: GivenPath | None = None,
    /,
    *,
    like: GivenPath | None = None,
    preset: Literal["tiny", "published"] = "tiny",
    layers: WholeNumber | None = None,
    fields: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    dtype: Literal["bf16", "fp8"] = "bf16",
    fp8_block: WholeNumber = 128,
    experts: Literal["packed", "separate"] | None = None,
    shard_mib: WholeNumber = 4096,
    seed: WholeNumber = 0,
    config_only: Annotated[bool, Parameter(negative="")] = False,
    expert_type: str = "Q4_0",
    dense_type: str = "Q8_0",
) -> None:
    """Write a model of random weights. The same arguments give the same bytes on every machine.

    `strata synth FAMILY OUT` starts from a preset, `strata synth --like MODEL OUT` from another model's config. An OUT
    that ends with .gguf becomes one file of random blocks, at the speed of the disk: for measuring large models.

    Parameters
    ----------
    family
        qwen4_exp, qwen3_5_moe, qwen3_next, qwen3_moe or llama; left out with --like.
    out
        The directory to make; it must not exist, its folder must.
    like
        A model directory or a config.json whose shapes are taken; its tokenizer comes along.
    preset
        tiny: a few megabytes; published: the sizes of the family's release.
    layers
        Number of layers instead of the preset's.
    fields
        field=value: set a field of the text config, as in --set hidden_size=512; may be given several times.
    dtype
        bf16, or fp8: block FP8 for the matrices that FP8 releases store that way.
    fp8_block
        Rows and columns of an FP8 block.
    experts
        One packed tensor a layer, or separate tensors for each expert; as the family's release does if not given.
    shard_mib
        Most MiB of one weight file.
    seed
        Another seed gives other values.
    config_only
        Write config.json and nothing else: enough for `strata inspect`.
    expert_type
        Q4_0 or Q8_0: the experts of a GGUF file.
    dense_type
        Q4_0 or Q8_0: the other large matrices of a GGUF file.
    """
    family, out = _family_and_place(family, out, like)
    _check_sizes(layers, fp8_block, shard_mib)
    config = _chosen_config(like, family, preset, layers, fields or [])
    found, style = _styled(config, (fp8_block, fp8_block) if dtype == "fp8" else None, seed, experts)
    text_source = like if like and like.is_dir() else models_shipped.default_path()
    if out.suffix == ".gguf" and not config_only:
        types = check_block_type("expert-type", expert_type), check_block_type("dense-type", dense_type)
        _write_gguf(out, config, found, style, text_source, types)
        return
    _write(out, config, found, style, text_source, shard_mib << 20, config_only=config_only)


def _family_and_place(family: str | None, out: Path | None, like: Path | None) -> tuple[str, Path]:
    """What the two places of the command line mean; the family is empty beside --like."""
    if family == "":
        raise SettingsError("the first argument is empty: give a family, or with --like the directory to make")
    if like is not None and out is None and family is not None:
        out, family = Path(family), None
    if out is None or (family is None) == (like is None):
        raise SettingsError("give a family or --like, and a directory to make: strata synth qwen4_exp OUT")
    return family or "", out


def _chosen_config(
    like: Path | None, family: str, preset: str, layers: int | None, fields: list[str]
) -> dict[str, Any]:
    config = _like_config(like) if like else presets.preset_config(family, preset)
    if layers is not None:
        presets.set_layers(config, layers)
    presets.set_fields(config, fields)
    return config


def _styled(
    config: dict[str, Any], block: tuple[int, int] | None, seed: int, experts: str | None
) -> tuple[Family, PublishedStyle]:
    """The config's family and how its tensors lie in the files; the config says from now on how they are stored."""
    config.pop("quantization_config", None)
    if block is not None:
        config["quantization_config"] = presets.quantization_fields(block)
    found = family_of(config)
    style = replace(presets.style_of(found.name, config, fp8_block=block), seed=seed)
    return found, style if experts is None else replace(style, experts_are_packed=experts == "packed")


def _check_sizes(layers: int | None, fp8_block: int, shard_mib: int) -> None:
    limits = (("layers", layers, MOST_LAYERS), ("fp8-block", fp8_block, 4096), ("shard-mib", shard_mib, 1 << 20))
    for flag, value, most in limits:
        if value is not None and not 1 <= value <= most:
            raise SettingsError(f"--{flag} is {value}; a whole number from 1 to {most} works")


def _write(
    out: Path,
    config: dict[str, Any],
    family: Family,
    style: PublishedStyle,
    text_source: Path,
    shard_bytes: int,
    *,
    config_only: bool,
) -> None:
    """Check the config by the family's own reading, then make the directory."""
    parsed = family.parse_config(config)
    console = Console(stderr=True, highlight=False)
    if config_only:
        with new_directory(out, 0) as directory:
            write_json(directory / CONFIG_NAME, config)
        console.print(Text(f"wrote {printable(str(out))}/config.json"), soft_wrap=True)
        return
    style = replace(style, integers=hash_constants(parsed))
    planned = plan_tensors(family.expected_tensors(parsed), style)
    total = sum(tensor.nbytes for tensor in planned)
    done = 0
    with new_directory(out, total) as directory, progress_bar() as report:
        write_json(directory / CONFIG_NAME, config)
        write_json(directory / "generation_config.json", _generation_fields(config))
        has_text = _copy_text_files(text_source, directory, presets.text_part(config)["vocab_size"])

        def advance(count: int, _: str) -> None:
            nonlocal done
            done += count
            if report is not None:
                report("writing", done, total)

        write_weights(directory, planned, shard_bytes, advance)
    words = "with a tokenizer" if has_text else "without a tokenizer: none of this vocabulary is at hand"
    sentence = f"wrote {printable(str(out))}: {len(planned):,} tensors, {gib(total)}, {words}"
    console.print(Text(sentence), soft_wrap=True)


def _write_gguf(
    out: Path, config: dict[str, Any], family: Family, style: PublishedStyle, text_source: Path, types: tuple[str, str]
) -> None:
    parsed = family.parse_config(config)
    has_text = _holds_tokenizer(text_source, parsed.vocabulary_size)
    with progress_bar() as report:
        tokenizer = text_source if has_text else None
        size = write_random_gguf(out, parsed, config, family.expected_tensors(parsed), style, types, tokenizer, report)
    words = "with a tokenizer" if has_text else "without a tokenizer: none of this vocabulary is at hand"
    sentence = f"wrote {printable(str(out))}: {gib(size)}, experts {types[0]}, dense {types[1]}, {words}"
    Console(stderr=True, highlight=False).print(Text(sentence), soft_wrap=True)


def hash_constants(parsed: Any) -> Mapping[str, tuple[int, ...]]:
    """The integers of n-gram hashes that a release of `qwen4_exp` holds as tensors, by canonical name."""
    values: dict[str, tuple[int, ...]] = {}
    if isinstance(parsed, Qwen4ExpConfig):
        for layer, shape in parsed.ngrams.items():
            prefix = f"model.layers.{layer}.ple.ple_embedding."
            values[f"{prefix}layer_multipliers"] = shape.multipliers
            values[f"{prefix}ngram_heads_offsets"] = tuple(accumulate(shape.head_sizes, initial=0))[:-1]
            values[f"{prefix}ngram_heads_vocab_sizes"] = shape.head_sizes
    return values


def _like_config(like: Path) -> dict[str, Any]:
    """The config of another model, checked by its family before anything in it is changed; without vision."""
    config = load_json_object(like, ConfigError) if like.suffix == ".json" else read_config(like)
    family_of(config).parse_config(config)
    config.pop("vision_config", None)
    return config


def _generation_fields(config: dict[str, Any]) -> dict[str, Any]:
    text = presets.text_part(config)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {"do_sample": False} | {name: text[name] for name in names if text.get(name) is not None}


def _copy_text_files(source: Path, target: Path, vocabulary_size: int) -> bool:
    """Copy a tokenizer and its template if every id of it is in the vocabulary; says whether it did."""
    if not _holds_tokenizer(source, vocabulary_size):
        return False
    for name in _TEXT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return True


def _holds_tokenizer(source: Path, vocabulary_size: int) -> bool:
    """Whether a directory has a tokenizer all of whose ids are in the vocabulary."""
    tokenizer = source / "tokenizer.json"
    if not tokenizer.is_file():
        return False
    try:
        size = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    except Exception as failure:  # the library raises nothing narrower
        raise TextError(f"{tokenizer} cannot be used: {failure}") from None
    return bool(size <= vocabulary_size)
