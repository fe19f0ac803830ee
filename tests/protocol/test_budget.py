"""Values of JSON are counted before it is parsed, and counted right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb  # type: ignore[import-untyped]

from serving.errors import BadRequest, Overloaded, TooLarge
from serving.protocol import budget, classify, grpc_v2, openai, v2
from serving.protocol.budget import require_few_values
from serving.protocol.memory import Memory

LETTERS = st.text(alphabet='a\\",[{\n\u00e9')
DOCUMENTS = st.recursive(
    st.none() | st.integers() | LETTERS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(LETTERS, inner, max_size=5),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """As the module says: what begins a value outside of texts, and both marks of a text."""
    if isinstance(value, str):
        return 2
    if isinstance(value, dict):
        return counted(list(value)) + sum(map(counted, value.values()))
    return 1 + max(0, len(value) - 1) + sum(map(counted, value)) if isinstance(value, list) else 0


@given(document=DOCUMENTS, piece=st.integers(1, 12), is_ascii=st.booleans())
def test_whatever_texts_hold_and_wherever_pieces_end_the_count_is_right(
    document: Any, piece: int, is_ascii: bool
) -> None:
    body, number = json.dumps(document, ensure_ascii=is_ascii).encode(), counted(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "PIECE_BYTES", piece)
        require_few_values(body, number, "")
        if number:
            with pytest.raises(BadRequest, match=rf"request.*\({number - 1}\)"):
                require_few_values(body, number - 1, "")


@pytest.mark.parametrize("value", [b"[1]", b"{}", b"1", b'""', b"[[[]]]"])
def test_millions_of_values_are_refused_before_they_are_parsed(value: bytes) -> None:
    many = b",".join([value] * 140_000)
    with pytest.raises(BadRequest, match=r"3.*5.*tokens"):
        openai.read_embeddings(b'{"model":"m","input":[%b]}' % many, 3, 5)
    with pytest.raises(BadRequest, match="; 3 images at most"):
        classify.read(b'{"images":[%b]}' % many, None, b"", 3)


def of_texts(number: int) -> bytes:
    head = {"name": "t", "shape": [1, number], "datatype": "BYTES", "parameters": {"binary_data_size": 4 * number}}
    return json.dumps({"inputs": [head]}).encode()


def of_texts_over_grpc(number: int) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="t", datatype="BYTES", shape=[1, number])
    request = pb.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[bytes(4 * number)])
    return bytes(request.SerializeToString())


def test_texts_are_counted_by_their_shape_in_binary_too() -> None:
    """Triton makes an object of each: ten million empty ones, 40 MB, took it 12 s."""
    most = budget.TEXTS.most
    v2.check_head(of_texts(most), 5 * most)
    grpc_v2.translated(grpc_v2.opened(of_texts_over_grpc(most)))
    with pytest.raises(BadRequest, match=r"524289 .* 524288"):
        v2.check_head(of_texts(most + 1), 5 * most)
    with pytest.raises(BadRequest, match=r"524289 .* 524288"):
        grpc_v2.translated(grpc_v2.opened(of_texts_over_grpc(most + 1)))


def test_as_many_values_as_are_taken_are_parsed() -> None:
    texts = openai.read_embeddings(json.dumps({"model": "m", "input": ['a,"[\\'] * 2048}).encode(), 2048, 0).texts
    assert texts is not None
    assert len(texts) == 2048
    ids = openai.read_embeddings(json.dumps({"model": "m", "input": [[1] * 10] * 2048}).encode(), 2048, 20_480).ids
    assert ids is not None
    assert sum(map(len, ids)) == 20_480


def test_memory_is_one_budget_and_comes_back_when_a_request_is_over() -> None:
    memory = Memory(100)
    first, second = memory.claim(), memory.claim()
    first.take(60)
    with pytest.raises(Overloaded) as busy:
        second.take(50)
    assert busy.value.retry_after_s
    second.take(40)
    with pytest.raises(TooLarge):
        second.take(61)
    assert (memory.held, memory.num_refused) == (100, 2)
    first.release()
    second.release()
    assert memory.held == 0


def test_who_still_works_for_a_request_that_is_over_gets_no_more_memory() -> None:
    memory = Memory(100)
    claim = memory.claim()
    claim.take(60)
    claim.release()
    with pytest.raises(Overloaded):
        claim.take(10)
    assert (memory.held, claim.held, memory.num_refused) == (0, 0, 0)
