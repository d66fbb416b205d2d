"""The local page on which people check labels."""
