"""The demonstration: real messages, cleaned and tokenised by suppliers, verified by a client.

``entrepot demo`` runs it; :mod:`entrepot.demo.suppliers` is an example of a supplier to read.
"""
