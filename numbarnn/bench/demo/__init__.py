"""`numbarnn demo`: a character model, trained on text."""
