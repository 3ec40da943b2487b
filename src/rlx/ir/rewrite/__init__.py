"""Graph to graph: passes, rules, and the one helper that rebuilds a graph."""
