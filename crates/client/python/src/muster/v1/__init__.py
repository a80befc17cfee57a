"""Messages and services, generated from the protocol."""
