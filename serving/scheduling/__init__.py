"""Where a request goes and why. Pure: no I/O, no clock, no asyncio, so every decision can be replayed."""
