"""Helpers for every part, without layers: data types, random numbers, the order of time, files, messages."""
