//! Generated protobuf and gRPC code, and the only conversions between it and the types.
//!
//! **Invariant:** no logic: a message becomes a value of `types` or a refusal that names the field;
//! nothing here decides. Only this crate names prost.

pub mod convert;
pub mod shared;
pub mod status;
pub mod token;

/// Internal protocol between replicas; unstable.
pub mod raft {
    /// First version.
    pub mod v1 {
        #![allow(missing_docs, clippy::all, clippy::pedantic)]
        tonic::include_proto!("muster.raft.v1");
        include!(concat!(env!("OUT_DIR"), "/servers/muster.raft.v1.rs"));
    }
}

/// The public API, first version.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("muster.v1");
    include!(concat!(env!("OUT_DIR"), "/servers/muster.v1.rs"));
}

/// Encoded descriptor set of every proto of the project, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
