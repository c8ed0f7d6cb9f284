"""The dialects of tool calls that Strata reads, and which of them a model speaks. Knows templates as text."""

from collections.abc import Sequence

from strata.errors import SettingsError
from strata.text.tool_calls.dialect import Dialect
from strata.text.tool_calls.hermes_json import HermesJson
from strata.text.tool_calls.llama_json import LlamaJson
from strata.text.tool_calls.qwen_xml import QwenXml

_XML, _HERMES, _LLAMA = QwenXml(), HermesJson(), LlamaJson()
DIALECTS: Sequence[Dialect] = (_XML, _HERMES, _LLAMA)


def dialect_of(template: str | None) -> Dialect | None:
    """The dialect that a chat template teaches; None if it teaches none that is known.

    A template with `<function=` and `<parameter=` is Qwen's XML; any other one with `<tool_call>` is JSON inside of it;
    one with `<|python_tag|>` is Llama's.
    """
    if template is None:
        return None
    if "<function=" in template and "<parameter=" in template:
        return _XML
    if "<tool_call>" in template:
        return _HERMES
    return _LLAMA if "<|python_tag|>" in template else None


def dialect_wanted(setting: str, template: str | None) -> Dialect | None:
    """The dialect by the setting `tool_dialect`: auto (the template's own), none, or a name."""
    if setting == "auto":
        return dialect_of(template)
    return None if setting == "none" else dialect_named(setting)


def dialect_named(name: str) -> Dialect:
    """The dialect of this name."""
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    names = ", ".join(dialect.name for dialect in DIALECTS)
    raise SettingsError(f"tool_dialect is {name!r}; it must be auto, none or one of {names}")
