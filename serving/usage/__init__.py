"""What tenants use: counted and held to quotas (`ledger`), kept over gateways and restarts (`stores`), and paid for (`bill`).

A gateway's thread that brings one to the other is `gateway/usage_watch.py`.
"""
