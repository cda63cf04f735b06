#!/usr/bin/env python3
"""In the place of MinIO's `mc ready local`, whatever it is called with: whether S3 answers."""

from __future__ import annotations

import sys
from urllib.error import HTTPError
from urllib.request import urlopen

try:
    with urlopen("http://127.0.0.1:9000/", timeout=4):
        pass
except HTTPError as fault:
    if fault.code >= 500:
        sys.exit(f"the server answered {fault.code}")
except OSError as fault:
    sys.exit(f"the server does not answer: {fault}")
