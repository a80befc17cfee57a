//! What a worker with an image sees of its host.

use crate::process::cdi::{Edits, ShownFile};
use crate::process::runtime::{Images, Prepared};
use crate::process::task::{ImageRoot, RootMount, TaskDir};
use crate::rules::{Launch, Placement};
use std::path::{Path, PathBuf};

/// Its own directory and what its agent speaks on (`socket`), files that the operator shows (of `images`), what its devices need
/// (`edits`), its scratch directory, where its checkpoints go, and what its job asks for.
///
/// # Errors
/// When the job asks for something in the place of what the agent shows.
pub(crate) fn of(
    (images, socket, edits, scratch): (Option<&Images>, Option<&Path>, &Edits, Option<&Path>),
    placement: &Placement,
    worker: &Launch,
    image: &Prepared,
    task: &TaskDir,
) -> Result<ImageRoot, String> {
    let own = |path: &Path, read_only| RootMount {
        source: path.to_owned(),
        target: path.to_owned(),
        read_only,
        by_agent: true,
    };
    let files = images.into_iter().flat_map(|images| images.files());
    let mut mounts: Vec<RootMount> = [own(task.path(), false)]
        .into_iter()
        .chain(socket.map(|socket| own(socket, false)))
        .chain(scratch.map(|scratch| own(scratch, false)))
        .chain(files.map(|file| own(file, true)))
        .collect();
    for ShownFile { source, target } in &edits.mounts {
        // What the operator shows at that place goes before it.
        if !mounts.iter().any(|known| overlap(&known.target, target)) {
            let (source, target) = (source.clone(), target.clone());
            mounts.push(RootMount { source, target, read_only: true, by_agent: true });
        }
    }
    for asked in worker.container.iter().flat_map(|container| &container.mounts) {
        let target = PathBuf::from(&asked.target);
        if mounts.iter().any(|own| own.by_agent && overlap(&own.target, &target)) {
            return Err(format!(
                "container.mounts: {} is above or below what the agent of this host shows there",
                asked.target
            ));
        }
        let (source, read_only) = (PathBuf::from(&asked.source), asked.read_only);
        mounts.push(RootMount { source, target, read_only, by_agent: false });
    }
    // The job's own directory of checkpoints is made by its workers, in the one that the job names.
    let checkpoints =
        Path::new(&placement.checkpoint_directory).parent().filter(|path| path.parent().is_some());
    if let Some(path) = checkpoints.filter(|path| !mounts.iter().any(|known| overlap(&known.target, path))) {
        mounts.push(RootMount { by_agent: false, ..own(path, false) });
    }
    let shared_memory_bytes = worker.container.as_ref().map_or(0, |asked| asked.shared_memory_bytes);
    Ok(ImageRoot { image: image.directory.clone(), mounts, shared_memory_bytes })
}

/// Whether one of two paths is the other, or below it.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}
