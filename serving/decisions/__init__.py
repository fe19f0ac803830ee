"""What to run where, at what price, and why: the cheapest fleet, the plan, the verdict, the scaler's decisions, the simulator.

Everything here is a pure function of values: no clock, no input, no output. Files are read in `prices.py`, `profile.py`, `curves.py`,
`traces.py` and `simulate/scenario.py`; what else reads and writes stands in each verb's `command.py`. `shipped/` holds the price list and
the profiles that come with Tandem.
"""
