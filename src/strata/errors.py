"""The error tree. Every error that a user can cause is a StrataError with one clear sentence.

Knows no part of the engine; what each part refuses is decided where the part lives.

    StrataError
    ├── SettingsError      a flag, a file's setting or an environment variable
    ├── ModelError         the model cannot be used
    │   ├── ConfigError      a config field: unknown, unsupported or contradicting another
    │   └── WeightFileError  a weight file: missing, truncated, of the wrong shape, not finite
    ├── TextError          tokenizer or chat template
    │   └── TemplateError    the template failed, ran too long or wrote too much
    ├── TraceError         a recorded trace of expert choices cannot be read, written or used
    ├── RequestError       what was asked: empty prompt, prompt too long, option out of range
    └── EngineError        the engine failed while it ran (numbers not finite, out of memory)
        └── DeviceLostError  the GPU, its driver or the threads beside it gave up: nothing runs until the process is
                             started again
"""


class StrataError(Exception):
    """Base of every error that Strata raises on purpose; its text is shown to the user as it is."""


class SettingsError(StrataError):
    """A setting's value is not usable; the text names the setting, the value and what would work."""


class ModelError(StrataError):
    """The model cannot be used; the text names the file or field."""


class ConfigError(ModelError):
    """A field of config.json is unknown, unsupported or contradicts another."""


class WeightFileError(ModelError):
    """A weight file is missing, truncated, of the wrong shape or holds values that are not finite."""


class TextError(StrataError):
    """The tokenizer or the text cannot be used."""


class TemplateError(TextError):
    """The chat template failed, ran longer than its limit or wrote more than its limit."""


class TraceError(StrataError):
    """A recorded trace cannot be read, written or used; the text names the file, the field and the value."""


class RequestError(StrataError):
    """A request cannot be served as asked; the text names the field, the value and what would work."""


class EngineError(StrataError):
    """The engine failed while it ran; the request ends with this text as its reason."""


class DeviceLostError(EngineError):
    """What computes failed in a way that its process does not recover from: every request under way ends with this."""
