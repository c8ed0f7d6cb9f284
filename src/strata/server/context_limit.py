"""A prompt that the context cannot hold: found by its length alone where that shows it, and told.

Knows the context's size and the refusal's sentence; no prompt.
"""

from dataclasses import dataclass

from strata.server.errors import ApiError


@dataclass(frozen=True)
class ContextLimit:
    """How many tokens prompt and reply may have together, and how many the model was trained for."""

    context: int
    trained_context: int

    def check_least(self, least: int, param: str) -> None:
        """ApiError 400 if a prompt of at least this many tokens cannot fit, whatever it holds."""
        if least >= self.context:
            raise self.refusal(f"at least {least:,}", param)

    def check(self, tokens: int, param: str) -> None:
        """ApiError 400 if a prompt of so many tokens leaves no room for a reply."""
        if tokens >= self.context:
            raise self.refusal(f"{tokens:,}", param)

    def refusal(self, tokens: str, param: str) -> ApiError:
        """The 400 with both numbers, and what helps: a larger context only where the model has one."""
        more = " or start the server with a larger --context" if self.context < self.trained_context else ""
        return ApiError(
            400,
            f"the prompt has {tokens} tokens and this server's context {self.context:,}, reply included: "
            f"shorten the prompt{more}",
            param=param,
            code="context_length_exceeded",
        )
