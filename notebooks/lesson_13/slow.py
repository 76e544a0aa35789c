"""Cages whose programs are slow."""
