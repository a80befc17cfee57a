//! The files of a directory, sent to other machines through a store of content by its digest.
//!
//! A client packs a directory: it sends each file that the store does not have, and then a list of all files. The digest of
//! that list stands for the directory. A node fetches the list by its digest, and each file by the digest in the list.
//!
//! **Invariant:** nothing that a store returns is used before its digest was checked.
//! **Invariant:** nothing is written outside of the directory that is unpacked into, whatever the list says.
//! **Invariant:** nothing outside of the directory of a worker is collected, whatever its links lead to.

mod bucket;
mod collect;
mod ignore;
mod pack;
mod place;
mod store;
mod tree;
mod unpack;

pub use bucket::{Bucket, Expired};
pub use collect::{Collecting, collect};
pub use pack::{PackError, Packed, Progress, pack};
pub use place::{Store, place_violation};
pub use store::{BlobDirectory, BlobError, BlobStore, take_in};
pub use tree::{BYTES_MAX, Entry, FILES_MAX, LIST_BYTES_MAX, Tree, TreeError};
pub use unpack::{UnpackError, Unpacking, list, unpack};
