"""Writes docs/settings.md from the settings. Knows their names and limits; no part that uses one."""

from dataclasses import fields

from strata.settings import CONFIG_VARIABLE, DEBUG_VARIABLE, SECTIONS, describe, variables_of


def as_markdown() -> str:
    """docs/settings.md: one table a section. A test holds the file against this."""
    lines = [
        "# Settings",
        "",
        "Written by `make settings` from `src/strata/settings.py`; edit that file, not this one.",
        "",
        "A flag wins over the environment, the environment over the settings file, the file over the default.",
        f"The settings file is TOML with one table a section; `{CONFIG_VARIABLE}` names it, otherwise",
        "`strata/settings.toml` in the user's configuration folder is read if it is there.",
        f"`{DEBUG_VARIABLE}=1` shows the traceback of an error.",
    ]
    for section_name, section in SECTIONS.items():
        lines += ["", f"## [{section_name}]", "", (section.__doc__ or "").splitlines()[0], ""]
        lines += ["| setting | default | takes | what it does | flag, variable |", "|---|---|---|---|---|"]
        described = describe(section)
        for field in fields(section):
            kind, limits = described[field.name]
            default = "" if field.default is None else f"`{field.default}`"
            flag = ("no-" if field.default is True else "") + field.name.replace("_", "-")
            names = ", ".join(f"`{each}`" for each in (f"--{flag}", *variables_of(field.name, limits)))
            lines.append(f"| `{field.name}` | {default} | {limits.in_words(kind)} | {limits.help} | {names} |")
    return "\n".join(lines) + "\n"
