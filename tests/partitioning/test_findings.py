"""What findings say: the words of every answer, and no more than a screen of them."""

from dataclasses import replace

import pytest

import dumpcmp
from dumpcmp.nouns.outcome import Answer
from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import Finding, Findings
from dumpcmp.partitioning.findings import COLUMNS


def found(*verdicts: str, reason: str = "") -> Findings:
    rows = [
        Finding(f"n{i}", "op", verdict=Verdict(v), reason=reason) for i, v in enumerate(verdicts)
    ]
    return Findings(tuple(rows), len(rows))


# Verdicts, whether every row passed, and the exit code.
CASES = [
    (["PASS"], True, 0),
    (["PASS", "SKIPPED"], False, 0),
    (["PASS", "INCONCLUSIVE"], False, 0),
    (["PASS", "FAIL"], False, 1),
    (["PASS", "REFUSED"], False, 1),
    (["ERROR"], False, 1),
    (["SKIPPED"], False, 2),
    ([], False, 2),
]


@pytest.mark.parametrize("verdicts, strictly, code", CASES)
def test_an_answer_is_true_if_all_passed_and_ends_well_if_nothing_failed(
    verdicts: list[str], strictly: bool, code: int
) -> None:
    findings = found(*verdicts)
    assert isinstance(findings, Answer)
    assert (bool(findings), findings.passed, findings.exit_code) == (strictly, code == 0, code)
    assert findings.tally.total == len(verdicts)
    assert findings.headline.split(":")[0] == ["SAME", "DIFFERENT", "TROUBLE"][code]
    if code:
        with pytest.raises(dumpcmp.VerificationError):
            findings.raise_for_status()
    else:
        findings.raise_for_status()


def test_a_node_that_was_not_verified_is_trouble_unless_that_is_known() -> None:
    findings = replace(found("PASS", "SKIPPED"), num_unverified=1)
    assert (findings.exit_code, replace(findings, partial=True).exit_code) == (2, 0)
    assert findings.headline.startswith("TROUBLE: 1 node was not verified")
    assert "not verified, or not wholly: 1 compute node" in findings.summary()
    failing = replace(found("FAIL", "SKIPPED"), num_unverified=1)
    assert (failing.exit_code, (findings + failing).num_unverified) == (1, 2)


def test_printing_findings_fills_a_screen_at_most() -> None:
    traceback = "Traceback (most recent call last)\n" * 200
    for findings in (found(*["PASS"] * 900), found(*["FAIL"] * 900, reason=traceback)):
        for text in (repr(findings), str(findings)):
            assert len(text.splitlines()) < 25
            assert max(map(len, text.splitlines())) < 160
        assert findings._repr_html_().count("<tr>") == 21


def test_the_table_has_the_columns_of_the_csv() -> None:
    findings = found("PASS", "FAIL")
    assert tuple(findings.to_pandas().columns) == COLUMNS
    assert findings.to_csv().splitlines()[0] == ",".join(COLUMNS)
    assert list(findings.to_pandas()["verdict"]) == ["PASS", "FAIL"]


def test_findings_add() -> None:
    both = found("PASS") + found("FAIL", "SKIPPED")
    assert (str(both.tally), both.num_nodes) == ("1 PASS, 1 FAIL, 1 SKIPPED", 3)
