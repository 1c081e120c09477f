"""Files of this machine: writing them durably, and temporary ones."""
