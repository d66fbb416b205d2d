"""The paper: its tables, published figures, recipes, fine-grained data sets and toy figures; only
the CLI imports it.
"""
