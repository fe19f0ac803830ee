"""One request's life. `app.py` builds everything once; the inference path is raw ASGI, everything else FastAPI."""
