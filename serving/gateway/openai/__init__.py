"""OpenAI's paths: /v1/embeddings, raw ASGI like inference, and /v1/models."""
