"""How words, numbers, tables and cards are shown, in a notebook and as text."""
