"""Cages whose programs end well, with gradients or weights that are wrong, and nobody notices."""
