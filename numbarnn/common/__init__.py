"""What every part may use and knows no layer: data types, random numbers, the order of time, files, messages."""
