"""Popular claims about CPUs and GPUs, put to the test on the hardware at hand.

`claims_file` says what is claimed and which number answers; `experiments` measures, with `speeds` and `bandwidth`; `cells` picks the
numbers and `judge` decides, both pure; `page` shows. Rule: what was not measured says so.
"""
