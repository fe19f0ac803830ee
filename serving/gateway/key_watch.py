"""Reloads the API keys when their file changes, while the gateway runs.

A thread looks at the path once a second and reads it when it leads to another file than before: a Secret in a cluster is a link that is
turned. Rule: a file that breaks or vanishes takes no key away and gives none; the last good keys stay in force, and the log and the metric
`tandem_keys_readable` say so.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from serving.errors import UserError
from serving.gateway.access import Access, Table, table_of
from serving.gateway.background import forever
from serving.keys.key import Key
from serving.keys.key_file import Broken, Stamp, look, read

EVERY_S = 1.0  # a revoked key is refused within this and the time of reading; a look costs 30 µs of a thread

log = logging.getLogger("tandem")


class KeyWatch:
    """Reads at once. `own` is one more key, of whoever started this gateway. Raises UserError for a file that cannot be used."""

    def __init__(self, path: Path, own: Key | None = None) -> None:
        self._path = path
        self._own = [] if own is None else [own]
        self._said = ""
        self._stamp: Stamp | None = None
        self.access = Access(self._read())
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_readable(self) -> bool:
        """Whether the keys are those of the file as it is now."""
        return not self._said

    def start(self) -> None:
        self._watching = asyncio.create_task(forever("the watch over the API keys", self._watch))

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Once."""
        try:
            table = await asyncio.to_thread(self._changed)
        except UserError as error:
            if str(error) != self._said:
                self._said = str(error)
                log.warning("%s. The keys that were read last stay in force", self._said)
            return
        if table is not None:
            self.access.table = table
            log.warning("the API keys %s were read anew: %d", self._path, len(table) - len(self._own))
            self._said = ""

    def _changed(self) -> Table | None:
        """None where nothing changed. What cannot be opened is tried again at each look, what is wrong only when it changes."""
        try:
            stamp = look(self._path)
        except OSError:
            self._stamp = None  # `read` says why
            return self._read()
        return None if stamp == self._stamp else self._read()

    def _read(self) -> Table:
        try:
            reading = read(self._path)
        except Broken as error:
            self._stamp = error.stamp
            raise
        except UserError:
            self._stamp = None
            raise
        self._stamp = reading.stamp
        return table_of([*reading.keys, *self._own])
