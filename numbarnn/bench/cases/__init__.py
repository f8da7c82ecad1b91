"""Problems that commands run: sizes, options and their arrays, and which of them cover what."""
