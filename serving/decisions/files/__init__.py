"""Readers of the files that decisions are made from: price lists, profiles, curves and traces."""
