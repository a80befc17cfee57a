//! The root directory of an image, in the place of the host's.
//!
//! The worker's process does this itself, in the mount namespace below its first process, before it gives up its
//! privileges. What it writes goes into its own directory, over the unpacked image, which many workers share.
//!
//! The order matters, because an image and the directories of a tenant can hold any symbolic link:
//! 1. What is to be seen of the host is opened, as the worker's user where the job asked for it, and never through what
//!    `/proc` has of other processes.
//! 2. The host's root directory goes. From here on every path leads into the image, and nothing that is mounted later.
//! 3. All places are made, which writes into the worker's own layer alone.
//! 4. Then everything is mounted, `/proc` last.
//!
//! What a job shows comes without the mounts below it. A directory is refused where these are what hides something from
//! workers: sockets of container daemons, devices, the `/tmp` of the host.
//!
//! **Invariant:** nothing is written to a directory of the host, nor to the unpacked image; no device file of an image opens
//! a device, and no program of it has another user's rights.

use super::confine::{SHARED_MEMORY, remount};
use super::namespaces::failed;
use crate::process::isolation::{Isolation, Namespaces};
use crate::process::runtime::ROOT;
use crate::process::task::{ImageRoot, RootMount, TaskDir, TaskSpec};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{Gid, Uid, pivot_root, setfsgid, setfsuid, setgroups};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What the network of the host needs of files: the worker has that network.
const NETWORK_FILES: [&str; 3] = ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
/// Bytes of one.
const NETWORK_FILE_BYTES_MAX: u64 = 1 << 20;
/// What the kernel shows, as the worker's namespaces have it; the last one has links into other processes.
const SYSTEM: [&str; 3] = ["/dev", "/sys", "/proc"];

/// A piece of the host that is on its way into the image.
struct Piece {
    tree: OwnedFd,
    target: PathBuf,
    is_directory: bool,
    flags: MsFlags,
}

/// Makes the root directory of an image this process's.
pub(super) fn enter(task: &TaskDir, spec: &TaskSpec, image: &ImageRoot) -> Result<(), String> {
    // The first process keeps the host's: it belongs to the shim.
    unshare(CloneFlags::CLONE_NEWNS).map_err(failed("make a mount namespace for the image"))?;
    let layer = Layer::mount(task, spec, image)?;
    let mut pieces = Vec::new();
    for mount in &image.mounts {
        let piece = take(mount, &spec.isolation);
        pieces.push(piece.map_err(|error| format!("show {}: {error}", mount.source.display()))?);
    }
    for path in SYSTEM {
        let piece = clone_of(Path::new(path), OpenTreeFlags::AT_RECURSIVE).map(|tree| Piece {
            tree,
            target: PathBuf::from(path),
            is_directory: true,
            flags: MsFlags::empty(),
        });
        pieces.push(piece.map_err(|error| format!("show {path}: {error}"))?);
    }
    let network: Vec<(&str, Vec<u8>)> =
        NETWORK_FILES.into_iter().filter_map(|path| Some((path, read(path)?))).collect();
    layer.become_root()?;
    for piece in &pieces {
        make_place(piece)
            .map_err(|error| format!("make {} in the image: {error}", piece.target.display()))?;
    }
    for (path, text) in network {
        put(Path::new(path), &text).map_err(|error| format!("write {path} in the image: {error}"))?;
    }
    make_tmp().map_err(|error| format!("make /tmp in the image: {error}"))?;
    for piece in pieces {
        let target = piece.target.clone();
        attach(piece).map_err(|error| format!("mount {} in the image: {error}", target.display()))?;
    }
    mount_shared_memory(image.shared_memory_bytes)
}

/// Over that of the gang, which came with `/dev`. Its pages count as memory of who writes them, as that of the worker's control group.
pub(super) fn mount_shared_memory(bytes: u64) -> Result<(), String> {
    if bytes == 0 {
        return Ok(());
    }
    let options = format!("size={bytes},mode=1777");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), SHARED_MEMORY, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(failed("mount /dev/shm of the asked size"))
}

/// The image with the worker's own layer over it.
struct Layer {
    merged: PathBuf,
}

impl Layer {
    fn mount(task: &TaskDir, spec: &TaskSpec, image: &ImageRoot) -> Result<Layer, String> {
        let own = task.image();
        let [upper, work, merged] = ["upper", "work", "root"].map(|name| own.join(name));
        let make = |path: &Path, mode| {
            fs::DirBuilder::new().recursive(true).create(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
        };
        for (path, mode) in [(&own, 0o700), (&upper, 0o755), (&work, 0o700), (&merged, 0o755)] {
            make(path, mode).map_err(|error| format!("make {}: {error}", path.display()))?;
        }
        let lower = image.image.join(ROOT);
        let mut options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        if spec.isolation.namespaces == Namespaces::User {
            // Its notes are attributes of files that need a privilege otherwise.
            options.push_str(",userxattr");
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("overlay"), &merged, Some("overlay"), flags, Some(options.as_str()))
            .map_err(failed("mount the image"))?;
        Ok(Layer { merged })
    }

    fn become_root(self) -> Result<(), String> {
        let enter = |path: &Path| {
            std::env::set_current_dir(path).map_err(|error| format!("enter {}: {error}", path.display()))
        };
        enter(&self.merged)?;
        // The old root directory lies over the new one for a moment, and is where nothing looks.
        pivot_root(".", ".").map_err(failed("make the image the root directory"))?;
        umount2(".", MntFlags::MNT_DETACH).map_err(failed("leave the root directory of the host"))?;
        enter(Path::new("/"))
    }
}

/// Takes a piece of the host, as who is to see it.
fn take(mount: &RootMount, isolation: &Isolation) -> io::Result<Piece> {
    let file = open_source(mount, isolation)?;
    if fstatfs(&file)?.filesystem_type() == PROC_SUPER_MAGIC {
        return Err(io::Error::other("it is of a /proc, which has links into other processes"));
    }
    if !mount.by_agent && isolation.namespaces != Namespaces::User {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if let Some(hidden) = uncovered(&path, &hidden_by_mounts(isolation)) {
            let hidden = hidden.display();
            return Err(io::Error::other(format!(
                "{hidden} in it is hidden from workers: show what is below it"
            )));
        }
    }
    let is_directory = file.metadata()?.is_dir();
    // Without privileges what is mounted below comes along: the kernel uncovers nothing for this user.
    let depth = if isolation.namespaces == Namespaces::User && is_directory {
        OpenTreeFlags::AT_RECURSIVE
    } else {
        OpenTreeFlags::empty()
    };
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(&file, "", flags | depth)?;
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if mount.read_only {
        flags |= MsFlags::MS_RDONLY;
    }
    Ok(Piece { tree, target: mount.target.clone(), is_directory, flags })
}

/// What a mount hides from workers, by the names that have no links.
fn hidden_by_mounts(isolation: &Isolation) -> Vec<PathBuf> {
    let private = ["/tmp", "/var/tmp", SHARED_MEMORY].map(PathBuf::from);
    let private = private.iter().filter(|_| isolation.private_tmp);
    let hidden = isolation.hidden.iter().chain(&isolation.closed_sockets).chain(private);
    hidden.filter_map(|path| fs::canonicalize(path).ok()).collect()
}

/// What a piece without the mounts below it would show again; a path that is itself covered shows the cover.
fn uncovered<'a>(path: &Path, hidden: &'a [PathBuf]) -> Option<&'a PathBuf> {
    hidden.iter().find(|hidden| *hidden != path && hidden.starts_with(path))
}

fn open_source(mount: &RootMount, isolation: &Isolation) -> io::Result<File> {
    let how =
        OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let user = isolation.user.filter(|_| !mount.by_agent);
    let _as_user = user.map(FileUser::become_user).transpose()?;
    Ok(File::from(openat2(AT_FDCWD, mount.source.as_path(), how)?))
}

/// As long as it is there, files are looked for with the rights of a user.
struct FileUser {
    user: Uid,
    group: Gid,
}

impl FileUser {
    fn become_user(number: u32) -> io::Result<FileUser> {
        setgroups(&[])?;
        let before =
            FileUser { group: setfsgid(Gid::from_raw(number)), user: setfsuid(Uid::from_raw(number)) };
        // They report no failure: asked again, they say what holds now.
        let now = (setfsuid(Uid::from_raw(number)).as_raw(), setfsgid(Gid::from_raw(number)).as_raw());
        if now == (number, number) { Ok(before) } else { Err(Errno::EPERM.into()) }
    }
}

impl Drop for FileUser {
    fn drop(&mut self) {
        setfsuid(self.user);
        setfsgid(self.group);
    }
}

fn clone_of(path: &Path, depth: OpenTreeFlags) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(AT_FDCWD, path, flags | depth)?)
}

fn read(path: &str) -> Option<Vec<u8>> {
    crate::disk::durable::read_bounded(Path::new(path), NETWORK_FILE_BYTES_MAX).ok()
}

/// Makes a directory and those above it, for every user to pass.
fn make_directories(path: &Path) -> io::Result<()> {
    let mut so_far = PathBuf::new();
    for part in path.components() {
        so_far.push(part);
        match fs::DirBuilder::new().mode(0o755).create(&so_far) {
            Ok(()) => fs::set_permissions(&so_far, fs::Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make_place(piece: &Piece) -> io::Result<()> {
    if piece.is_directory {
        return make_directories(&piece.target);
    }
    if let Some(above) = piece.target.parent() {
        make_directories(above)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(&piece.target) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// A file of the host's in the image.
fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    make_directories(path.parent().unwrap_or(Path::new("/")))?;
    // Often a link to what is not there.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(text)
}

/// An image of one program may have none.
fn make_tmp() -> io::Result<()> {
    let tmp = Path::new("/tmp");
    match fs::create_dir(tmp) {
        Ok(()) => fs::set_permissions(tmp, fs::Permissions::from_mode(0o1777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn attach(piece: Piece) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    move_mount(&piece.tree, "", AT_FDCWD, piece.target.as_path(), flags)?;
    if !piece.flags.is_empty() {
        remount(&piece.target, piece.flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_mount_hides_is_shown_by_none_of_its_directories() {
        let hidden = ["/run/docker.sock", "/tmp"].map(PathBuf::from);
        for (path, shows) in [
            ("/", Some("/run/docker.sock")),
            ("/run", Some("/run/docker.sock")),
            ("/run/docker.sock", None),
            ("/run/docker.sock/x", None),
            ("/run/d", None),
            ("/tmp", None),
            ("/tmp/below", None),
            ("/home", None),
        ] {
            assert_eq!(uncovered(Path::new(path), &hidden), shows.map(PathBuf::from).as_ref(), "{path}");
        }
    }
}
