//! Generated protobuf and gRPC code, and the only conversions between it and the types.
//!
//! **Invariant:** no logic: a message becomes a value of `types` or a refusal that names the field;
//! nothing here decides. Only this crate names prost.

pub use prost_types::FieldMask;

pub mod address;
pub mod closed;
pub mod codec;
pub mod convert;
pub mod features;
pub mod node_state;
mod shape;
pub mod shared;
pub mod status;
pub mod time;
pub mod token;

pub use shape::process;

/// Internal protocol between replicas; unstable.
pub mod raft {
    /// First version.
    pub mod v1 {
        #![allow(missing_docs, clippy::all, clippy::pedantic)]
        include!(concat!(env!("OUT_DIR"), "/apart/muster.raft.v1.rs"));
        include!(concat!(env!("OUT_DIR"), "/servers/muster.raft.v1.rs"));
    }
}

/// The public API, `muster.v1beta1`.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    tonic::include_proto!("muster.v1beta1");
    include!(concat!(env!("OUT_DIR"), "/servers/muster.v1beta1.rs"));
}

/// What the operators of a cluster call, `muster.admin.v1beta1`.
pub mod admin {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/apart/muster.admin.v1beta1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/muster.admin.v1beta1.rs"));
}

/// What agents and replicas tell each other, `muster.agent.v1beta1`.
pub mod agent {
    #![allow(missing_docs, clippy::all, clippy::pedantic)]
    include!(concat!(env!("OUT_DIR"), "/apart/muster.agent.v1beta1.rs"));
    include!(concat!(env!("OUT_DIR"), "/servers/muster.agent.v1beta1.rs"));
}

/// Encoded descriptor set of every proto of the project, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
