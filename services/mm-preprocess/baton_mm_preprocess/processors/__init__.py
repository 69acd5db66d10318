"""Processors of vision-language models: one decoded image to what its encoder takes.

They equal transformers' image processors on Pillow. A family is a row of `families.FAMILIES` over
the functions of `sizes`, `tiles` and `patches`.
"""
