"""Cages whose programs die."""
