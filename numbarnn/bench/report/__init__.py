"""`numbarnn report`: records of times as a page; and a record against a former one."""
