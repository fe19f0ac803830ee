"""A trace of requests through the very functions that serve: discrete events, no clock, no input, no output, no randomness of its own."""
