"""What runs in the sandbox's own interpreter: the standard library only, nothing else is there."""
