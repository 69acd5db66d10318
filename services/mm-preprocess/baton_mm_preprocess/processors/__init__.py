"""Image processors of vision-language models: one decoded image to the encoder's input.

They equal transformers' image processors on Pillow. A family is a row of `families.FAMILIES`,
composed of functions of `sizes`, `tiles` and `patches`.
"""
