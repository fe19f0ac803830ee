"""What a report holds, how it is said and how it looks; `loadtest/report/build.py` computes it."""
