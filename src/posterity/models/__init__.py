"""Networks that come ready-made."""
