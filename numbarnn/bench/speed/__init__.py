"""`numbarnn bench`: times, what they are worth, and the records of them."""
