"""The sidecar: what the broker and the store know, over HTTP, for people and for Prometheus.

It asks the broker for its figures as any client does, and reads the store without ever writing to
it. It may die at any time: nothing depends on it.
"""
