"""The routes, one file an API; each offers `router(parts)`."""

from strata.server.routes import (
    anthropic_messages,
    health,
    models,
    monitor,
    openai_chat,
    openai_completions,
    openai_responses,
    operation,
    page,
    tokenize,
)

ROUTES = (
    health.router,
    models.router,
    openai_chat.router,
    openai_completions.router,
    openai_responses.router,
    anthropic_messages.router,
    tokenize.router,
    operation.router,
    monitor.router,
    page.router,
)
