"""Programs: the buffers and operations of a forward and a backward call."""
