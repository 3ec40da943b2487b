"""Programs as text: the grammar of graphs, LIR, and the forms for reading."""
