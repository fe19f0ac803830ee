"""Times out of files as people have them; the rows here are made up in the shape of Azure's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.decisions.traces import read_trace
from serving.errors import UserError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2031-05-04 23:59:59.2500000,120,7
2031-05-04 23:59:59.7512345,88,31
2031-05-05 00:00:01.2500000,1024,2
"""


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (AZURE, [0.0, 0.501234, 2.0]),
        ("\ufeff" + AZURE, [0.0, 0.501234, 2.0]),  # as spreadsheets save it
        ("ContextTokens,TIMESTAMP\n5,2031-05-04 10:00:00\n5,2031-05-04 10:00:30.5\n", [0.0, 30.5]),
        ("TIMESTAMP\n2031-05-04 10:00:00+00:00\n2031-05-04 10:00:01+00:00\n", [0.0, 1.0]),
        ("10\n11.5\n12\n", [0.0, 1.5, 2.0]),
        ("seconds,what\n10,a\n11.5,b\n", [0.0, 1.5]),
        ("3\n1\n2\n", [0.0, 1.0, 2.0]),  # written in the order of the answers
        ("5\n\n6\n  \n", [0.0, 1.0]),
        ("7\n", [0.0]),
        ("\n , \n" + AZURE, [0.0, 0.501234, 2.0]),  # blank lines before the header
        ("TIMESTAMP\n2031-05-04 10:00:00+00:00\n2031-05-04 12:00:01+02:00\n", [0.0, 1.0]),
        ("TIMESTAMP\n2031-05-04 10:00:00\n2031-05-04 12:00:01+02:00\n", [0.0, 1.0]),  # without an offset it is UTC
        (",TIMESTAMP\n0,2031-05-04 10:00:00\n1,2031-05-04 10:00:30\n", [0.0, 30.0]),  # as pandas saves it
    ],
)
def test_times_are_told_from_the_first_arrival(tmp_path: Path, text: str, times: list[float]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    found = read_trace(path, rows=2)
    assert [at for at, _ in found] == pytest.approx(times, abs=1e-5)
    assert {rows for _, rows in found} == {2}


@pytest.mark.parametrize(
    "text",
    [
        "seconds,rows\n10,1\n12,32\n11,8\n",
        "rows,what,TIMESTAMP\n1,a,2031-05-04 10:00:00\n8,b,2031-05-04 10:00:01\n32,c,2031-05-04 10:00:02\n",
    ],
)
def test_a_column_of_rows_stays_with_its_times(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    assert read_trace(path) == [(0.0, 1.0), (1.0, 8.0), (2.0, 32.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no arrival"),
        ("TIMESTAMP\n", "holds no arrival"),
        ("seconds\n1\nx\n", "row 3: 'x' is no time"),
        ("seconds\n1\nnan\n", "row 3: 'nan' is no time"),
        ("1\ninf\n", "row 2"),
        ("nan\n1\n2\n", "row 1: 'nan' is no time"),
        (",5\n1,5\n", "row 1: '' is no time"),
        ("null\n1\n2\n", "row 1: 'null' is no time"),
        ("N/A\n1\n2\n", "row 1: 'N/A' is no time"),
        ("None,\n1,2\n", "row 1: 'None' is no time"),
        ("\n1O.5\n11\n", "row 2: '1O.5' is no time"),
        ("2031-05-04 10:00:00\n2031-05-04 10:00:01\n", "row 1: '2031-05-04 10:00:00' is no time such as 12.5"),
        ("x,7\n1,7\n", "row 1: 'x' is no time"),
        ("0\n1700000000\n", "19,676 days from the first arrival to the last"),
        ("TIMESTAMP\n2031-05-04 10:00:00\n2033-05-04 10:00:00\n", "731 days"),
        ("TIMESTAMP\n2031-05-04 10:00:00\nyesterday\n", "row 3: 'yesterday' is no time such as 2023"),
        ("a,TIMESTAMP\n1,2031-05-04 10:00:00\n1\n", "row 3: '' is no time"),
        ("seconds,rows\n1,2\n2,0\n", "row 3: rows '0' is no number above 0"),
        ("seconds,rows\n1,2\n2,-1\n", "row 3: rows '-1'"),
        ("seconds,rows\n1,2\n2\n", "row 3: rows ''"),
        ("seconds,rows\n1,many\n", "row 2: rows 'many'"),
    ],
)
def test_a_row_that_is_no_time_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        read_trace(path)
    assert said in str(raised.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"1\x00\n"])
def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trace.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"trace\.csv"):
        read_trace(path)


def test_a_collectors_file_gives_whole_requests_that_were_sampled(tmp_path: Path) -> None:
    def span(name: str, at_s: float, **attributes: object) -> dict[str, object]:
        kinds = {str: "stringValue", float: "doubleValue"}
        known = [{"key": f"tandem.{key}", "value": {kinds[type(it)]: it}} for key, it in attributes.items()]
        return {"name": name, "startTimeUnixNano": str(int(at_s * 1e9)), "attributes": known}

    def line(*spans: dict[str, object]) -> str:
        return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]})

    sampled = {"kept_by": "sampled", "model": "m"}
    queue = span("queue", 1_800_000_002.0, rows=4.0)
    first = line(span("POST", 1_800_000_002.0, rows=4.0, **sampled), queue)
    second = line(span("POST", 1_800_000_000.5, **sampled), span("POST", 1_800_000_001.0, kept_by="error", model="m"))
    file = tmp_path / "traces.json"
    file.write_text(f"{first}\n{second}\n{line(span('InferRequest', 1_800_000_000.0))}\n")
    assert read_trace(file, 8) == [(0.0, 8), (1.5, 4.0)]
    assert read_trace(file, model="m") == [(0.0, 1.0), (1.5, 4.0)]
    with pytest.raises(UserError, match="of the model 'n', but of m"):
        read_trace(file, model="n")
    file.write_text(f'{first}\n{{"resourceSpans": [1]}}\n')
    with pytest.raises(UserError, match="line 2"):
        read_trace(file)


def test_an_access_log_gives_times_and_rows_and_a_wrong_line_its_number(tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    lines = [{"at": 1_800_000_001.5, "rows": 4, "outcome": "ok"}, {"at": 1_800_000_000.0, "rows": 1, "outcome": "shed"}]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_trace(log) == [(0.0, 1.0), (1.5, 4.0)]
    for wrong in ("{", "[]", '{"at": 1}', '{"at": "x", "rows": 1}', '{"at": 1, "rows": 0}', '{"at": NaN, "rows": 1}'):
        log.write_text(f"{json.dumps(lines[0])}\n{wrong}\n")
        with pytest.raises(UserError, match="line 2"):
            read_trace(log)
