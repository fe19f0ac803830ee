"""What a pipeline may ask to fail on, and what fails."""

from __future__ import annotations

import pytest

from loadtest.report.fail_if import ArmNumbers, Condition, ConditionError, failures, parse

NAMES = ("p50_s", "p99_s", "throughput_rps", "within_objective_ratio", "errors")
ARMS = ("fp32-cpu", "v1.5-int8")


@pytest.mark.parametrize(
    ("text", "arm", "name", "operator", "number"),
    [
        ("p99_s > 0.05", None, "p99_s", ">", 0.05),
        ("p99_s>0.05", None, "p99_s", ">", 0.05),
        ("  errors >= 1 ", None, "errors", ">=", 1.0),
        ("fp32-cpu.p99_s > 5e-2", "fp32-cpu", "p99_s", ">", 0.05),
        ("v1.5-int8.throughput_rps<1000", "v1.5-int8", "throughput_rps", "<", 1000.0),
        ("within_objective_ratio <= .99", None, "within_objective_ratio", "<=", 0.99),
        ("errors != 0", None, "errors", "!=", 0.0),
        ("errors == -1", None, "errors", "==", -1.0),
    ],
)
def test_a_condition_is_a_name_an_operator_and_a_number(
    text: str, arm: str | None, name: str, operator: str, number: float
) -> None:
    assert parse(text, NAMES, ARMS) == Condition(text.strip(), arm, name, operator, number)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not of the form NAME OP NUMBER"),
        ("p99_s", "is not of the form"),
        ("p99_s 0.05", "is not of the form"),
        ("p99_s > ", "is not of the form"),
        ("> 0.05", "is not of the form"),
        ("p99_s > 0.05 or errors > 0", "is not of the form"),
        ("p99_s = 0.05", "is not of the form"),
        ("p99_s => 0.05", "is not of the form"),
        ("0.05 < p99_s", "nothing is named '05'"),
        ("p99_s > 50ms", "'50ms' is not a number"),
        ("p99_s > nan", "'nan' is not a number"),
        ("p99_s > inf", "'inf' is not a number"),
        ("p9_s > 0.05", "nothing is named 'p9_s'; did you mean 'p99_s'?"),
        ("P99_S > 0.05", "did you mean 'p99_s'?"),
        ("zzz > 1", "nothing is named 'zzz'; known are p50_s, p99_s, "),
        ("fp23-cpu.p99_s > 1", "no arm is named 'fp23-cpu'; did you mean 'fp32-cpu'?"),
        ("__import__('os') > 1", "is not of the form"),
    ],
)
def test_what_is_no_condition_is_an_error_with_the_way_out(text: str, why: str) -> None:
    with pytest.raises(ConditionError) as error:
        parse(text, NAMES, ARMS)
    assert why in str(error.value)
    assert str(error.value).count("\n") == 0
    assert error.value.exit_code == 2


def test_an_arm_that_is_not_known_yet_is_taken() -> None:
    assert parse("anything.p99_s > 1", NAMES).arm == "anything"


def place(arm: str = "fp32-cpu", p99_s: float | None = 0.04, where: str = "", not_run: str | None = None) -> ArmNumbers:
    return ArmNumbers(arm, where, {"p99_s": p99_s, "errors": 0.0}, not_run)


FAST, SLOW = place(), place("int8-cpu", 0.06, "at 100 users")


@pytest.mark.parametrize(
    ("text", "places", "said"),
    [
        ("p99_s > 0.05", [FAST], []),
        ("p99_s > 0.05", [FAST, SLOW], ["Failed: p99_s > 0.05: p99_s of int8-cpu at 100 users is 0.06."]),
        ("p99_s > 0.04", [FAST], []),
        ("p99_s >= 0.04", [FAST], ["Failed: p99_s >= 0.04: p99_s of fp32-cpu is 0.04."]),
        ("fp32-cpu.p99_s > 0.05", [FAST, SLOW], []),
        ("errors == 0", [FAST], ["Failed: errors == 0: errors of fp32-cpu is 0."]),
        ("p99_s > 0.05", [place(p99_s=None)], ["Failed: p99_s > 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s > 0.05", [place(p99_s=float("nan"))], ["Failed: p99_s > 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s < 0.05", [place(p99_s=None)], ["Failed: p99_s < 0.05: p99_s of fp32-cpu is not known (too few valid runs or requests)."]),
        ("p99_s > 0.05", [FAST, place("fp16-gpu", None, not_run="no GPU here")], []),  # asked of what ran
        ("fp16-gpu.p99_s > 0.05", [place("fp16-gpu", None, not_run="no GPU here")],
         ["Failed: fp16-gpu.p99_s > 0.05: p99_s of fp16-gpu is not known (it was not run: no GPU here)."]),
        ("p99_s > 0.05", [place("fp16-gpu", None, not_run="no GPU here")], ["Failed: p99_s > 0.05: nothing was measured, so nobody knows."]),
        ("p99_s > 0.05", [], ["Failed: p99_s > 0.05: nothing was measured, so nobody knows."]),
        ("gone.p99_s > 0.05", [FAST], ["Failed: gone.p99_s > 0.05: nothing was measured, so nobody knows."]),
    ],
)  # fmt: skip
def test_what_is_so_or_not_known_fails_with_a_sentence(text: str, places: list[ArmNumbers], said: list[str]) -> None:
    assert failures(parse(text, NAMES), places) == said
