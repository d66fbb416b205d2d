"""Labels for a table of embeddings or a folder of images: embed, label, suggest, audit."""
