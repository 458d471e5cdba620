"""How answers are graded: what was found in them, and why it is right or not."""
