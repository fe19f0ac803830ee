"""What a model is judged on, as arrays: read from npz, a folder of images, or a table of texts.

`dataset` is the value that comes out, `reading` finds the reader for a path, `digits` is what ships with Tandem. Rules: what
a variant is calibrated on is never in what it is judged on, and a reader says what it wanted and what it got.
"""
