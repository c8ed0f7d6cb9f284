"""`strata bench serve`: load on a running server. Knows flags and a table; what is measured is in `strata.bench`."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.bench.serve import LoadPlan, LoadReport, run_load
from strata.cli.console import printable
from strata.cli.flags import GivenPath
from strata.cli.report_file import check_report_file, write_report
from strata.errors import EngineError

_ROWS = {"ttft": "time to first token", "tpot": "time a token", "itl": "gap between pieces", "e2el": "whole request"}


def serve(
    url: str = LoadPlan.url,
    /,
    *,
    api_key: str | None = None,
    clients: int = LoadPlan.clients,
    requests: int = LoadPlan.requests,
    prompt_words: int = LoadPlan.prompt_words,
    reply_tokens: int = LoadPlan.reply_tokens,
    leave_share: float = LoadPlan.leave_share,
    requests_a_second: float | None = None,
    seed: int = LoadPlan.seed,
    json: GivenPath | None = None,
) -> None:
    """Ask a running server from many clients at once and show what they waited for.

    Parameters
    ----------
    url
        Where the server is.
    api_key
        If it needs one.
    clients
        How many ask at once.
    requests
        How many requests there are in all.
    prompt_words
        Words of each prompt.
    reply_tokens
        Tokens of each reply.
    leave_share
        Share of the clients that leave in the middle of their reply.
    requests_a_second
        Requests come at random, so many a second; not given: each client asks again at once.
    seed
        Of prompts, of who leaves, and of when requests come.
    json
        Also write everything to this file, under the names of vLLM's benchmark.
    """
    plan = LoadPlan(url, api_key, clients, requests, prompt_words, reply_tokens, leave_share, requests_a_second, seed)
    check_report_file(json)
    report = run_load(plan)
    _show(report)
    write_report(json, report.as_json())
    if report.completed + report.left == 0:
        raise EngineError(f"no request was answered: {'; '.join(report.details)}")


def _show(report: LoadReport) -> None:
    console = Console(highlight=False)
    plan = report.plan
    console.print(
        Text(
            f"{plan.url}: {report.completed} complete, {report.left} left early, {report.refused} refused, "
            f"{report.failed} failed in {report.duration:.1f} s; {plan.clients} clients at once"
        ),
        soft_wrap=True,
    )
    for detail in report.details:
        console.print(Text(printable(detail)), soft_wrap=True)
    if not report.completed:
        return
    console.print(
        Text(
            f"{report.request_throughput:.2f} requests/s, {report.output_throughput:.1f} tokens written/s, "
            f"{report.total_token_throughput:.1f} tokens/s with prompts"
        ),
        soft_wrap=True,
    )
    table = Table("milliseconds", box=None, padding=(0, 2, 0, 0), header_style="cyan")
    columns = ("mean", "p50", "p90", "p99", "max")
    for column in columns:
        table.add_column(column, justify="right")
    for name, words in _ROWS.items():
        found = getattr(report, name)
        table.add_row(words, *(f"{found[column]:,.1f}" if found else "" for column in columns))
    console.print(table)
