"""Forward and backward passes in C++: each thread computes whole sequences, and PyTorch's operations are not used.

`library` loads the shared library that setup.py builds where there is a compiler; `engine` computes steps with it.
How the C++ is laid out: docs/design/native.md.
"""
