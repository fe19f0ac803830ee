"""Kubernetes objects as frozen values, parsed from the JSON that an API server or `helm template` writes. Pure.

`pods` has pods and what makes them, `nodes` the machines and who buys them, `namespace` everything else; `fields` reads one field and
`gpus` knows which resources are cards and which pools are weighed. Each kind has one class, whoever asks for it, and `parse` is its only
constructor from JSON. Rule: a field that is absent or null is no error, and nothing here judges.
"""
