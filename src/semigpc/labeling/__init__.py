"""Labels for a table of embeddings or a folder of pictures: embed, label, suggest, audit."""
