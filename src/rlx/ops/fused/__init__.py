"""Several ops as one, for targets that claim them."""
