"""The command `tandem plan`: profiles, prices and an objective from files, a plan and its settings into files.

Deciding is `planning/plan`'s.
"""
