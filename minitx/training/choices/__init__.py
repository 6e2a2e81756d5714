"""Choices by measurement on the machine that trains: precision, attention kernel, compilation."""
