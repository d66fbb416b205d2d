"""Images and pages made from results: plain data in, files out."""
