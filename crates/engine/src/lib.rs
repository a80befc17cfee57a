//! The replica: intake, decision loop, apply loop, read views, watch hub, liveness, outbox.
