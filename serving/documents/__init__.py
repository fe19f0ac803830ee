"""Documents that go in and out: the strict reader of YAML and JSON, tables, figures and HTML pages.

Imports nothing by itself, because a gateway takes the reader alone.
"""
