"""Cases that commands run: sizes and options, instances with arrays, and which of them cover what."""
