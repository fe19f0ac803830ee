"""What clients bring, made into what a model takes: images and texts into arrays, as the model's preprocessing says.

Pure computing on bytes, for gates, load tests and the gateway alike, so that all three see the same model. Where the files lie is
`repository/`'s; who waits for whom is the caller's.
"""
