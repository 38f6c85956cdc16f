"""Loading and launching the CUDA kernels of `cuda_src/`; beside `ruda_tensor/backend.py` the only code to use CuPy."""
