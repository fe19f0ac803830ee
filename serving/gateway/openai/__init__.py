"""OpenAI's paths: /v1/embeddings, called by the connection like inference, and /v1/models."""
