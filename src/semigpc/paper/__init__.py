"""The paper: its tables, published figures, recipes, data sets and toy figures. For cli only."""
