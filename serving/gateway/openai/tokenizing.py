"""Turns the input of an embeddings request into token ids, in pieces that keep no thread long.

Texts may be made so that a tokenizer takes seconds for what is small to send: words that it does not know, a hundred letters each. So a
thread gets some of them at a time, and between two pieces other requests have their turn, a client that has left is noticed, and a
deadline counts. Rule: every mistake names the text by its number in the request.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from serving import errors
from serving.gateway.openai.embedders import Embedder
from serving.gateway.request.dispatch import ClientLeft
from serving.gateway.request.exchange import Exchange
from serving.gateway.threads import Threads
from serving.preprocessing.texts import TooLong
from serving.protocol.openai import EmbeddingsRequest
from serving.settings import LimitSettings

# Of one piece. On a busy machine MiniLM's tokenizer takes 0.6 µs for a character of English, 5 ms for a piece, and 20 times as much for the
# worst words that were tried (letters and digits in turn, a hundred without a blank).
PIECE_CHARACTERS = 8 * 1024
# A request with more characters than this for each token that it may have is not read: English has 4 to 5. A guess, not measured.
CHARACTERS_PER_TOKEN = 8


class Tokenizing:
    """Raises BadRequest for dimensions that the model has not, and for more characters than any request may have."""

    def __init__(self, request: EmbeddingsRequest, embedder: Embedder, limits: LimitSettings) -> None:
        self._request = request
        self._embedder = embedder
        self._limits = limits
        if request.dimensions is not None and request.dimensions > embedder.size:
            raise errors.BadRequest(
                f"'dimensions' is {request.dimensions}; vectors of '{request.model}' have {embedder.size}",
                param="dimensions",
            )
        num_characters = sum(map(len, request.texts or ()))
        most = limits.max_tokens * CHARACTERS_PER_TOKEN
        if num_characters > most:
            raise _too_much(f"{num_characters} characters", most)
        self.is_short = num_characters <= PIECE_CHARACTERS

    def all(self) -> list[list[int]]:
        """In one go, on a thread. Raises BadRequest."""
        texts, ids = self._request.texts, self._request.ids
        rows = self._given(ids or []) if texts is None else self._ids(texts, 0)
        self._require_few(sum(map(len, rows)))
        return rows

    async def in_parts(self, threads: Threads, exchange: Exchange) -> list[list[int]]:
        """Raises ClientLeft, DeadlineExpired, Overloaded, BadRequest."""
        deadline = min(exchange.arrived + exchange.wait_s, perf_counter() + self._limits.upstream_timeout_s)
        texts, rows, num_tokens = self._request.texts or [], list[list[int]](), 0
        with exchange.watched():
            for start, end in pieces(texts):
                rows += await threads.run(partial(self._ids, texts[start:end], start))
                num_tokens += sum(map(len, rows[start:end]))
                self._require_few(num_tokens)
                if exchange.has_left:
                    raise ClientLeft
                if perf_counter() > deadline:
                    raise errors.DeadlineExpired("the deadline passed while the texts were read")
        return rows

    def _ids(self, texts: list[str], first: int) -> list[list[int]]:
        """`first`: the number of the first of these texts."""
        try:
            return self._embedder.tokenizer.ids(texts, cut=self._request.cut)
        except TooLong as error:
            raise self._too_long(error, first) from None
        except errors.UserError as error:
            raise errors.Internal(f"'{self._request.model}': {error}") from None

    def _given(self, rows: list[list[int]]) -> list[list[int]]:
        tokenizer = self._embedder.tokenizer
        for index, row in enumerate(rows):
            if not 0 <= min(row) <= max(row) < tokenizer.num_ids:
                bad = next(one for one in row if not 0 <= one < tokenizer.num_ids)
                raise errors.BadRequest(
                    f"'input' number {index} has the token {bad}; ids of '{self._request.model}' are 0 to {tokenizer.num_ids - 1}",
                    param="input",
                )
        try:
            return tokenizer.marked(rows, cut=self._request.cut)
        except TooLong as error:
            raise self._too_long(error, 0) from None

    def _too_long(self, error: TooLong, first: int) -> errors.BadRequest:
        return errors.BadRequest(
            f"'input' number {first + error.index} has {error.size}; '{self._request.model}' takes {error.limit} tokens: shorten it, "
            'or say "truncate": true',
            param="input",
        )

    def _require_few(self, num_tokens: int) -> None:
        if num_tokens > self._limits.max_tokens:
            raise _too_much(f"{num_tokens} tokens", self._limits.max_tokens)


def pieces(texts: list[str]) -> list[tuple[int, int]]:
    """First and one behind the last text of each piece: at least one, and no more characters than a piece has where they are several."""
    found, start, num_characters = [], 0, 0
    for index, text in enumerate(texts):
        num_characters += len(text)
        if num_characters > PIECE_CHARACTERS and index > start:
            found.append((start, index))
            start, num_characters = index, len(text)
    return [*found, (start, len(texts))]


def _too_much(what: str, most: int) -> errors.BadRequest:
    return errors.BadRequest(
        f"'input' has {what}; at most {most} are taken at once, so send several requests", param="input"
    )
