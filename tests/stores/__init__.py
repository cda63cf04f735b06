"""Buckets to test against: real servers on loopback, and a proxy that goes wrong on demand."""
