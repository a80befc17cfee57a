//! Clients and work.
pub mod clients;
pub mod gangs;
pub mod pace;
pub mod record;
