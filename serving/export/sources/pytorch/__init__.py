"""Torch modules: the dynamo exporter that several kinds of source share, and `module:`, the user's own code."""
