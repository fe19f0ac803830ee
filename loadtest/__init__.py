"""Load tests on Locust: what does each variant on each pool really give?

A campaign file names arms (variant × pool) and a load; `campaign.py` runs them, `records.py` keeps what happened,
`report.py` says what it means. Nothing here imports `serving`: a gateway is a URL. Only `locustfile.py` imports Locust,
which patches the process it is imported into.
"""
