"""lm-evaluation-harness over /v1/completions: it runs, and its log-likelihoods are those of the engine itself.

Knows lm-eval as a program (extra `conformance`) and the engine's process without a server.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import strata.models_shipped
from strata.engine.client import EngineProcess
from strata.engine.messages import Ended, Load, PromptRead, Ready, Submit
from strata.engine.request import TokenRequest
from strata.sampling.options import SamplingOptions
from strata.settings import EngineSettings
from strata.text.tokenizer import load_tokenizer
from tests.conformance.table import Row
from tests.server.serving import serving

MOST_DIFFERENCE = 1e-4
_QUESTIONS = (
    ("A ship comes to land in a", [" harbour", " teapot"]),
    ("We drink tea from a", [" cup", " mountain"]),
    ("The sun rises in the", [" east", " pocket"]),
    ("A dog is an", [" animal", " idea of stone"]),
)
_TASK = """task: strata_local
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def harness() -> Row:
    """Run a task of four questions and compare every log-likelihood."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [json.dumps({"question": question, "choices": choices}) for question, choices in _QUESTIONS]
        (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "strata_local.yaml").write_text(_TASK.format(file=folder / "questions.jsonl"))
        with serving("--context", "1024") as server:
            server.until_ready()
            output = _run(server.url, folder)
        theirs = _likelihoods(folder)
    ours = _own([(question, choice) for question, choices in _QUESTIONS for choice in choices])
    name = "lm-evaluation-harness `local-completions` on a local task file"
    target = f"log-likelihoods of the engine within {MOST_DIFFERENCE:g}"
    if len(theirs) != len(ours):
        print(output[-4000:], file=sys.stderr)
        return Row(name, target, f"{len(theirs)} of {len(ours)} log-likelihoods came", False)
    worst = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
    return Row(name, target, f"{len(ours)} log-likelihoods, largest difference {worst:.1e}", worst <= MOST_DIFFERENCE)


def _run(url: str, folder: Path) -> str:
    arguments = {
        "model": "pocket",
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(strata.models_shipped.default_path()),
        "num_concurrent": "2",
        "max_length": "1024",
    }
    command = [
        sys.executable, "-m", "lm_eval", "--model", "local-completions",
        "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
        "--tasks", str(folder / "strata_local.yaml"), "--log_samples", "--output_path", str(folder / "out"),
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    ran = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ) | offline, timeout=600)
    return ran.stdout + ran.stderr


def _likelihoods(folder: Path) -> list[float]:
    """Of every choice, in the order of the questions."""
    found: list[tuple[int, list[float]]] = []
    for file in (folder / "out").rglob("samples_*.jsonl"):
        for line in file.read_text().splitlines():
            sample = json.loads(line)
            found.append((sample["doc_id"], [float(answer[0][0]) for answer in sample["resps"]]))
    return [value for _, values in sorted(found) for value in values]


def _own(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The same from the engine's process, without HTTP."""
    path = strata.models_shipped.default_path()
    tokenizer = load_tokenizer(path)
    process = EngineProcess.start(Load(None, EngineSettings(context=1024)))
    try:
        while not isinstance(process.receive(120), Ready):
            pass
        found = []
        for number, (question, choice) in enumerate(pairs, start=1):
            whole, begin = tokenizer.encode(question + choice), len(tokenizer.encode(question))
            request = TokenRequest(tuple(whole), SamplingOptions(max_tokens=1), prompt_logprobs=0)
            process.send(Submit(number, request))
            while not isinstance(message := process.receive(120), Ended):
                if isinstance(message, PromptRead):
                    found.append(sum(draw.logprob or 0.0 for draw in message.logprobs[begin:]))
        return found
    finally:
        process.kill()
