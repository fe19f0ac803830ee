"""Where a request goes and why. Pure: no I/O, no clock, no asyncio, so every decision can be replayed.

It may be compiled (`serving/compiled.py`): the same files, in half of their time.
"""

from serving.compiled import use

use(__name__, __path__)
