//! Compiles every `.proto` below `proto/` with protox (no system protoc) and keeps the descriptor set for reflection.

use prost::Message as _;
use std::path::{Path, PathBuf};

fn protos(directory: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            protos(&path, found)?;
        } else if path.extension().is_some_and(|ext| ext == "proto") {
            found.push(path);
        }
    }
    Ok(())
}

fn configure() -> tonic_prost_build::Builder {
    tonic_prost_build::configure().codec_path("crate::codec::SmallBuffers")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let mut files = Vec::new();
    protos(&root, &mut files)?;
    files.sort();
    println!("cargo:rerun-if-changed={}", root.display());
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    let descriptors = protox::compile(&files, [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    // The public package by itself: what the others have of it they name as `crate::v1`.
    configure().build_server(false).compile_fds(descriptors.clone())?;
    let apart = out.join("apart");
    std::fs::create_dir_all(&apart)?;
    configure()
        .build_server(false)
        .out_dir(apart)
        .bytes(".muster.raft.v1")
        .extern_path(".muster.v1beta1", "crate::v1")
        .compile_fds(descriptors.clone())?;
    // Servers are generated separately: there, a message that many watchers receive is encoded once.
    let servers = out.join("servers");
    std::fs::create_dir_all(&servers)?;
    let mut builder = configure()
        .build_client(false)
        .out_dir(servers)
        .extern_path(".muster.v1beta1", "crate::v1")
        .extern_path(".muster.admin.v1beta1", "crate::admin")
        .extern_path(".muster.agent.v1beta1", "crate::agent")
        .extern_path(".muster.raft.v1", "crate::raft::v1");
    for response in ["WatchJobsResponse", "WatchNodesResponse", "WatchTenantsResponse"] {
        let shared = format!("crate::shared::Shared<crate::v1::{response}>");
        builder = builder.extern_path(format!(".muster.v1beta1.{response}"), shared);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
