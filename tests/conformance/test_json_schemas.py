"""What comes to its end under a schema fulfils it: the suite's first 60 schemas; `grammar_run` runs them all."""

from tests.conformance.grammar_run import run_random, summary
from tests.conformance.json_schemas import FAMILIES, schemas

COUNT = 60


def test_replies_that_end_fulfil_their_schema_and_the_rest_is_refused_or_reported() -> None:
    outcomes = list(run_random(schemas(COUNT)))
    wrong = [(found.name, found.why, found.text) for found in outcomes if found.kind == "invalid"]
    assert [found for found in wrong if "not_supported" not in found[0] and "overlapping" not in found[0]] == []
    assert {found.name.split()[1] for found in outcomes if found.is_relaxed} == {"overlapping_one_of", "not_supported"}
    assert {found.name.split()[1] for found in outcomes if found.kind == "refused"} == {"refused"}
    counts = summary(outcomes)
    assert counts["refused"] == COUNT // len(FAMILIES)
    assert counts["valid"] >= 48
    assert max(found.seconds for found in outcomes) < 10


def test_the_suite_is_the_same_everywhere() -> None:
    suite = schemas()
    assert len(suite) == 500
    assert suite == schemas() and suite[:60] == schemas(60)
    assert len({repr(named.schema) for named in suite}) > 400
