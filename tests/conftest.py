"""For all tests: what the tests start has to be interruptible, also where the tests themselves were started in the background.

A shell without job control lets what it starts with `&` ignore SIGINT, and children inherit that.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["clients"]  # outside clients, in an environment of their own: `make test-clients`
