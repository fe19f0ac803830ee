"""Tandem: serves a model on CPU and GPU in tandem, and uses a GPU exactly when it pays.

The rooms, from the top down (imports point down this list, `tests/test_architecture.py` says so): cli, ui, cluster, local,
gateway, export, decisions, scheduling, protocol, repository, settings, errors.
"""

__version__ = "0.1.0"
