"""Activations as products: what to capture, and how."""

from entrepot.capture.catcher import Capture, Captured, ModelIOCatcher
from entrepot.capture.spec import check_names, io_spec, parse_io_spec

__all__ = ["Capture", "Captured", "ModelIOCatcher", "check_names", "io_spec", "parse_io_spec"]
