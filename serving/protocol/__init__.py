"""What the wire formats say, without a socket: bytes in, values out, errors as `serving.errors` classes."""
