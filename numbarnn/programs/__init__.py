"""What a forward and a backward call allocate and run."""
