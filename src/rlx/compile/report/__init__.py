"""What became of a program: text, JSON, and a page with the graph drawn."""
