"""What do the surfaces cost that are more than a forwarded request: JSON images, gRPC, embeddings, classification, and keys on all of them?

`python -m loadtest.bench.surfaces` runs the parts, each a module that measures one of them beside what a user would have without it.
What the gateway costs on the tiny model is `loadtest.bench.gateway`'s.
"""
