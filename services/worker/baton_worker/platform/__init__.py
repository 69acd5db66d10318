"""The machine under the worker: memory, devices, malloc, names of flags."""
