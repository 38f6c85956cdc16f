"""Speed and memory next to PyTorch and autograd: `python -m benchmarks --help`."""
