"""Measuring: one stopwatch that takes rounds in turn, one method for intervals, one description of the machine, one search.

Everything here that decides is pure; `machine` and `rounds` alone look at the machine and at the clock. What is measured (an engine,
Triton, a gateway) is the caller's. Rule: requests of one round are never taken for independent, so an interval is taken over rounds.
"""
