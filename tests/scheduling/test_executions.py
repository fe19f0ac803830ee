"""Which execution a request is part of, as answers come in any order."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from serving.scheduling.curve import Curve
from serving.scheduling.executions import Execution, Executions
from serving.scheduling.prediction import Service

CURVE = Curve(((1, 0.010), (8, 0.011)))


# 0.1 + 0.2 - 0.1 - 0.2 is not 0.
@example([(1.0, False, 0), (0.1, False, 0), (0.2, False, 0), (1, True, 0.5), (1, True, 1)], 1, False)
@settings(deadline=None)  # of one example: machines are busy
@given(
    st.lists(st.tuples(st.floats(0.1, 20.0), st.booleans(), st.floats(0, 1)), max_size=60),
    st.integers(1, 3),
    st.booleans(),
)
def test_nothing_is_left_of_executions_whose_requests_were_all_answered(
    story: list[tuple[float, bool, float]], num_instances: int, gathers: bool
) -> None:
    """However many rows they have, parts of a row among them, and in whatever order they are answered."""
    service, executions, now = Service(CURVE, num_instances, 8, gathers=gathers), Executions(), 0.0
    flying: list[tuple[Execution, float]] = []
    for rows, is_answer, which in story:
        now += 0.004 if which < 0.5 else 0.0
        if is_answer and flying:
            execution, its_rows = flying.pop(int(which * (len(flying) - 1)))
            executions.left(now, service, execution, its_rows)
        else:
            execution, ends = executions.join(now, service, rows)
            assert ends > now
            flying.append((execution, rows))
    for execution, its_rows in flying:
        executions.left(now, service, execution, its_rows)
    assert executions.begins(now, service, 1.0) == (now, 1.0)
    assert not executions._running
    assert not executions._waiting


def test_rows_that_come_at_once_are_one_execution_where_an_idle_instance_waits_for_them() -> None:
    service, executions = Service(CURVE, 2, 8, gathers=True), Executions()
    joined = [executions.join(1.0, service, 4) for _ in range(3)]
    assert [joined[0][0] is it for it, _ in joined] == [True, True, False], "8 rows, and the other instance takes 4"
    assert joined[1][1] == 1.0 + service.seconds(8)
    assert executions.begins(1.0, service, 1) == (1.0, 5)
    assert executions.begins(1.001, service, 1) == (1.0 + service.seconds(4), 1)
    executions.left(1.0, service, joined[2][0], 4)
    assert executions.begins(1.0, service, 1) == (1.0, 1)
