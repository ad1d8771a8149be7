"""Tests do not measure the machine: clients are trained one by one, unless a test says otherwise."""

import os

os.environ.setdefault("FEDBCGD_MACHINE", "workers=1,chunk=1")
