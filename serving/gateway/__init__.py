"""One request's life. `app.py` builds everything once; the connection calls inference itself, everything else is FastAPI."""
