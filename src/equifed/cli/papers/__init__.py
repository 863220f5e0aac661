"""How `equifed reproduce` shows each paper's experiments: a module per paper."""
