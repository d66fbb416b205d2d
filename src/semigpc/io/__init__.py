"""Files: written completely or not at all, read with checks; tables, images, paths, tensors and
text.
"""
