"""What a validation found wrong with a body's fields, in our words: the field, its value, what works.

Knows pydantic's errors; no field. Of a field that takes several types pydantic reports one error a type, each under the
type's name: here they are one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_WORKS = {
    "string": "a text",
    "list": "a list",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "dict": "an object",
    "model": "an object",
}
_TYPE_NAMES = frozenset(("str", "int", "float", "bool"))  # as pydantic puts them behind a field of several types


def mistakes(errors: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Field and sentence of every field that is wrong, "" for the body as a whole."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for error in errors:
        found.setdefault(_place(error), []).append(error)
    # Of a list in which only some entries are wrong, the type that got furthest names the entry.
    nested = {place for place in found if any(other.startswith(f"{place}.") for other in found) and place}
    return [(place, _sentence(place, among)) for place, among in found.items() if place not in nested]


def _sentence(place: str, errors: Sequence[Mapping[str, Any]]) -> str:
    name = place or "the body"
    if errors[0].get("type") == "missing":
        return f"{name} is missing"
    works = list(dict.fromkeys(filter(None, (_what_works(error) for error in errors))))
    if not works:
        return f"{name}: {errors[0].get('msg', 'is not usable')}"
    return f"{name} is {_shown(errors[0].get('input'))}; it must be {' or '.join(works)}"


def _what_works(error: Mapping[str, Any]) -> str | None:
    return _WORKS.get(str(error.get("type")).partition("_")[0])


def _shown(value: Any) -> str:
    """A value as JSON writes it, short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:100]


def _place(error: Mapping[str, Any]) -> str:
    """The field that an error is about: `messages.0.role`."""
    location = [part for part in error.get("loc", ()) if part not in ("body", "query", "path")]
    kept = [str(part) for part in location if not _names_a_type(part)]
    return ".".join(kept)


def _names_a_type(part: Any) -> bool:
    return part in _TYPE_NAMES or (isinstance(part, str) and part.startswith(("list[", "dict[", "constrained-")))
