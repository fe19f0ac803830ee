"""Load tests on Locust: what does each variant on each pool really give, and what follows from it?

A campaign file names arms (variant × pool) and a load; `campaign.py` runs them, `sending/` is what goes out, `records.py` keeps what
happened, `report/build.py` says what it means by `serving/measure`, `report/` shows it. To all of these a gateway is a URL. `profile/`,
`verdict/`, `claims/` and `bench/` start servers of their own. Only `locustfile.py` imports Locust, which patches the process that does.
"""
