"""Files run side by side, on fewer cores than there are of them: threads of BLAS and OpenMP that wait for each other by spinning would only take turns."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported, here or in what tests start
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
