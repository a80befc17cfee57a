//! Attacks of a hostile tenant: on its host, by what its workers do ([`hosts`]), and on the replicas, by what its
//! certificates can call ([`replicas`], [`tenants`], [`flood`]). All print a table of every attack, of what stopped it, and what came of it.

mod flood;
mod hosts;
mod replicas;
mod table;
mod tenants;
