"""Redis: open windows, their sequence, leases, reservations and replies. Never the arbiter: SQL decides."""
