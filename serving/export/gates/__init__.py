"""Is a file good enough to serve? Measured, with the limits beside the values.

    file       could servers load it          graph      is it the model that it was exported from
    accuracy   are its answers good enough     limits     how far they may go, and every refusal

Speed is in `speed`, writing in `publish`. Rule: a gate passes with its record or refuses with an exception of `limits`, and a
comparison with NaN in it refuses.
"""
