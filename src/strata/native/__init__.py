"""The C++ library behind a C ABI. Knows where it lies and what it exports; what it is used for is decided above."""
