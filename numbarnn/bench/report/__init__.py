"""`numbarnn report`: records of times side by side, as one page; and a record against a former one."""
