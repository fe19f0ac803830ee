"""`keras:`: files that Keras 3 saved, on its torch backend."""
