"""What is sent, and how it goes out: inputs, bodies, connections, the generator of one process."""
