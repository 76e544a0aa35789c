"""What is under a cell while ranks run: what they print, the figures that they show, and how far each of them is."""
