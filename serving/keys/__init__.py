"""API keys: what a key is (`key`), the file they stand in (`key_file`), and how that file is changed (`changes`).

Who may do what with a key is decided in `gateway/access.py`. Rule: the text of a key exists once, where it is made; everything else
knows its SHA-256.
"""
