"""What runs on a rank before, around and after the program. A rank that starts cold executes these files before it
knows of any package, so they import only the standard library and each other."""
