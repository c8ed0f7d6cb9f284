"""What users get wrong, and what a damaged model is: one clear sentence each on stderr, an exit code that is not 0."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata.cli.app import run
from strata.cli.exit_codes import EXIT_ENGINE_FAILED, EXIT_USER_MISTAKE

Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line that must be refused; returns its one sentence."""

    def check(*arguments: str, code: int = EXIT_USER_MISTAKE) -> str:
        assert run(arguments) == code
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("error: ")
        return line

    return check


def generate(model: Path, *more: str) -> list[str]:
    return ["generate", "Hello", "--model", str(model), "--max-tokens", "4", *more]


def change_json(file: Path, change: Callable[[dict], None]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def change_tensor(model: Path, ending: str, change: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Change the first tensor whose name ends so; returns its name."""
    for file in sorted(model.glob("*.safetensors")):
        tensors = load_file(file)
        for name in sorted(tensors):
            if name.endswith(ending):
                tensors[name] = change(tensors[name]).contiguous()
                save_file(tensors, file, metadata={"format": "pt"})
                return name
    raise AssertionError(f"no tensor ends with {ending}")


def test_missing_shard(broken_model: Path, refused: Refused) -> None:
    shard = sorted(broken_model.glob("*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refused(*generate(broken_model))


@pytest.mark.parametrize("left", [0, 4, 100, 4000, -1])
def test_truncated_file(broken_model: Path, refused: Refused, left: int) -> None:
    shard = sorted(broken_model.glob("*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:left])
    assert shard.name in refused(*generate(broken_model))


def test_tensor_of_the_wrong_shape(broken_model: Path, refused: Refused) -> None:
    name = change_tensor(broken_model, "q_proj.weight", lambda tensor: tensor[:-1])
    line = refused(*generate(broken_model))
    assert name.split("layers.")[1] in line
    assert "shape" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(broken_model: Path, refused: Refused, value: float) -> None:
    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[7] = value
        return tensor

    name = change_tensor(broken_model, "o_proj.weight", spoil)
    line = refused(*generate(broken_model))
    assert name.split("layers.")[1] in line
    assert "finite" in line


def test_unknown_model_type(broken_model: Path, refused: Refused) -> None:
    change_json(broken_model / "config.json", lambda values: values.update(model_type="mamba9"))
    line = refused(*generate(broken_model))
    assert "mamba9" in line
    assert "qwen4_exp" in line


@pytest.mark.parametrize(
    ("field", "value"),
    [("attention_bias", True), ("hidden_act", "gelu"), ("rope_turbo", 2), ("num_experts_per_tok", 99)],
)
def test_config_field_that_is_not_supported(broken_model: Path, refused: Refused, field: str, value: object) -> None:
    change_json(broken_model / "config.json", lambda values: values["text_config"].update({field: value}))
    line = refused(*generate(broken_model))
    assert field in line
    assert str(value).lower() in line.lower()


def test_template_that_loops_for_ever(broken_model: Path, refused: Refused) -> None:
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    (broken_model / "chat_template.jinja").write_text(template)
    line = refused(*generate(broken_model))
    assert "chat template" in line
    assert "longer than" in line


def test_template_that_does_not_compile(broken_model: Path, refused: Refused) -> None:
    (broken_model / "chat_template.jinja").write_text("one\n{% if %}")
    line = refused(*generate(broken_model))
    assert "chat template" in line
    assert "line 2" in line


@pytest.mark.parametrize("raw", [[], ["--raw"]])
@pytest.mark.parametrize("source", ["", "-"])
def test_empty_prompt(
    tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, source: str, raw: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "the prompt is empty" in refused("generate", source, "--model", str(tiny_model), *raw)


def test_prompt_longer_than_the_context(tiny_model: Path, refused: Refused) -> None:
    line = refused("generate", "harbour " * 100, "--model", str(tiny_model), "--context", "32")
    assert "the context holds 32" in line
    assert int(line.split("the prompt has ")[1].split()[0]) > 100


@pytest.mark.parametrize(("data", "offset"), [(b"\xffHello", 0), (b"caf\xe9", 3), (b"one\xe2\x98", 3)])
def test_stdin_that_is_not_utf8(
    tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, data: bytes, offset: int
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    line = refused("generate", "-", "--model", str(tiny_model))
    assert "standard input is not valid UTF-8" in line
    assert f"offset {offset}" in line


def test_closed_stdin(tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refused("generate", "-", "--model", str(tiny_model))


def test_argument_that_is_not_utf8(tiny_model: Path, refused: Refused) -> None:
    line = refused("generate", os.fsdecode(b"caf\xe9"), "--model", str(tiny_model))
    assert "the prompt is not valid UTF-8" in line
    assert "offset 3" in line


def test_directory_without_read_permission(
    broken_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:  # root may read everything, so the system's answer is put in its mouth
        monkeypatch.setattr("strata.weights.directory.os.access", lambda *_, **__: False)
    else:
        broken_model.chmod(0)
    line = refused(*generate(broken_model))
    broken_model.chmod(0o755)
    assert str(broken_model) in line
    assert "permission denied" in line


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_file_without_read_permission(
    broken_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Path.read_bytes

    def deny(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", deny)
    line = refused(*generate(broken_model))
    assert name in line
    assert "permission denied" in line.lower()


def test_path_that_is_not_there(refused: Refused, tmp_path: Path) -> None:
    assert f"there is no model directory or GGUF file {tmp_path / 'none'}" in refused(*generate(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("--model", ["generate", "Hello", "--model", ""]),
        ("--model", ["chat", "--model", ""]),
        ("PATH", ["inspect", ""]),
        ("DIRECTORY", ["convert", "", "out.gguf"]),
        ("OUT", ["convert", ".", ""]),
        ("OUT", ["synth", "qwen4_exp", ""]),
        ("--like", ["synth", "out", "--like", ""]),
        ("MODEL", ["bench", "peer", "--cpu", ""]),
    ],
)
def test_path_that_is_empty(refused: Refused, name: str, arguments: list[str]) -> None:
    assert f"{name}: the path is empty: give one" in refused(*arguments)


def test_directory_to_make_that_is_empty_beside_like(refused: Refused, tiny_model: Path) -> None:
    assert "the first argument is empty" in refused("synth", "", "--like", str(tiny_model))


def test_folders_that_are_missing_are_not_made(refused: Refused, tiny_model: Path, tmp_path: Path) -> None:
    place = tmp_path / "none" / "deep"
    for arguments in (["convert", str(tiny_model), str(place / "x.gguf")], ["synth", "llama", str(place / "x")]):
        assert f"there is no folder {place}; make it first" in refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_places_that_take_no_file(refused: Refused, tiny_model: Path) -> None:
    for arguments in (["convert", str(tiny_model), "/proc/x.gguf"], ["synth", "qwen3_moe", "/proc/x"]):
        assert "nothing can be written in /proc" in refused(*arguments)


def test_path_that_holds_no_model(refused: Refused, tmp_path: Path) -> None:
    assert "config.json" in refused(*generate(tmp_path))


@pytest.mark.parametrize(("name", "words"), [("model.gguf", "GGUF"), ("notes.txt", "is a file")])
def test_path_that_is_a_file(refused: Refused, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_text("text")
    assert words in refused(*generate(tmp_path / name))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b""])
def test_json_that_is_none(broken_model: Path, refused: Refused, name: str, content: bytes) -> None:
    (broken_model / name).write_bytes(content)
    assert name in refused(*generate(broken_model))


def test_missing_tokenizer(broken_model: Path, refused: Refused) -> None:
    (broken_model / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in refused(*generate(broken_model))


def test_tokenizer_of_another_model(broken_model: Path, refused: Refused) -> None:
    def widen(values: dict) -> None:
        values["added_tokens"].append({"id": 20000, "content": "<|far|>", "special": True})
        values["model"]["vocab"]["<|far|>"] = 20000

    change_json(broken_model / "tokenizer.json", widen)
    refused(*generate(broken_model))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "Hello", "--temprature", "1"], ["--temprature", "--temperature"]),
        (["generate"], ["PROMPT"]),
        (["generate", "Hello", "once", "again"], ["nothing takes 'once again'", "in quotes"]),
        (["generate", "Hello", "--max-tokens", "many"], ["--max-tokens", "many", "a whole number"]),
        (["generate", "Hello", "--max-tokens", "1.5"], ["--max-tokens", "1.5", "a whole number"]),
        (["inspect", "--context", "1.5"], ["--context", "'1.5'", "a whole number"]),
        (["generate", "Hello", "--max-tokens", "0"], ["max_tokens", "0", "at least 1"]),
        (["generate", "Hello", "--threads", "-3"], ["threads", "-3", "from 1"]),
        (["generate", "Hello", "--dtype", "int3"], ["dtype", "int3", "float32"]),
        (["generate", "Hello", "--temperature", "nan"], ["temperature", "nan"]),
        (["generate", "Hello", "--raw", "--system", "Be brief"], ["--system", "--raw"]),
        (["generate", "Hello", "--stop", ""], ["stop", "at least one character"]),
        (["generate", "Hello", "--stop", os.fsdecode(b"a\xff")], ["--stop is not valid UTF-8", "0xff at offset 1"]),
        (["generate", "Hello", "--system", os.fsdecode(b"\xff")], ["--system is not valid UTF-8", "0xff at offset 0"]),
        (["chat", "--system", os.fsdecode(b"\xff")], ["--system is not valid UTF-8", "0xff at offset 0"]),
        (["generrate", "Hello"], ["generrate"]),
    ],
)
def test_command_line_that_is_wrong(tiny_model: Path, refused: Refused, arguments: list[str], words: list[str]) -> None:
    model = ["--model", str(tiny_model)] if len(arguments) > 1 and arguments[0] == "generate" else []
    line = refused(*arguments, *model)
    for word in words:
        assert word in line


def test_wrong_environment_and_settings_file(
    tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STRATA_CONTEXT", "lots")
    assert "STRATA_CONTEXT" in refused(*generate(tiny_model))
    monkeypatch.delenv("STRATA_CONTEXT")
    monkeypatch.setenv("STRATA_CONFIG", str(tmp_path / "none.toml"))
    assert "none.toml" in refused(*generate(tiny_model))


def test_engine_that_fails_says_so_with_another_code(
    tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("strata.cli.generate.Engine", fail)
    assert "out of memory" in refused(*generate(tiny_model), code=EXIT_ENGINE_FAILED)


def test_a_bug_is_one_line_and_its_traceback_is_there_for_the_asking(
    tiny_model: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("strata.cli.generate.Engine", fail)
    assert "STRATA_DEBUG=1" in refused(*generate(tiny_model), code=EXIT_ENGINE_FAILED)
    monkeypatch.setenv("STRATA_DEBUG", "1")
    assert run(generate(tiny_model)) == EXIT_ENGINE_FAILED
    assert "Traceback" in capsys.readouterr().err


def test_names_cannot_steer_the_terminal(refused: Refused) -> None:
    assert "\x1b" not in refused("generate", "Hello", "--model", "no\x1b[2Jmodel")
