"""Does the GPU pay for a model at a load? `tandem verdict` measures, plans and reports; judging is `serving/decisions/verdict.py`'s."""
