//! gRPC services: limits, forwarding, status mapping.
