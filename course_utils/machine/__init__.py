"""What this computer has, how busy it is, and whether it's ready for the course."""
