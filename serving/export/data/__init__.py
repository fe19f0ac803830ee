"""What a model is judged on, as arrays: read from npz, a folder of images, or a table of texts.

`dataset` is the value that comes out, `reading` finds the reader for a path and has the digits that ship with Tandem. Rules:
no row calibrates a variant and judges it; a reader says what it wanted and what it got.
"""
