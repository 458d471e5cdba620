"""Result sets that other tools, and our own runs, have left behind, read into one neutral form."""
