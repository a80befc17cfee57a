//! Separate disks: small, full, hanging, or without power.
//!
//! They are mounted in the harness's own mount namespace (see `sandbox`) and go with it.

use super::FaultError;
use super::tools;
use crate::unsupported::{Means, Unsupported};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What fills a disk, at its root: keep a process's directory one below.
const BALLAST: &str = ".ballast";
/// How often a disk is made smaller again because somebody wrote to it meanwhile.
const SHRINK_TRIES_MAX: u32 = 100;
/// No disk in memory is smaller.
const PAGE_BYTES: u64 = 4096;
/// Seconds until the file system writes by itself what nobody flushed.
const COMMIT_S: u32 = 600;

#[derive(Debug)]
enum Kind {
    Memory { bytes: u64 },
    Image { image: PathBuf, cuts: u32 },
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Disk {
    directory: PathBuf,
    kind: Kind,
    is_frozen: bool,
}

impl Disk {
    /// A disk of that size in memory.
    pub fn memory(directory: &Path, bytes: u64) -> Result<Disk, FaultError> {
        std::fs::create_dir_all(directory).map_err(FaultError::on_path("making", directory))?;
        mount_memory(directory, bytes, MsFlags::empty())
            .map_err(|error| Unsupported::new(Means::Mount, &error))?;
        Ok(Disk { directory: directory.to_owned(), kind: Kind::Memory { bytes }, is_frozen: false })
    }

    /// An ext4 file system of that size in a sparse file. What is not flushed does not survive [`Disk::power_cut`].
    pub fn image(directory: &Path, image: &Path, bytes: u64) -> Result<Disk, FaultError> {
        std::fs::create_dir_all(directory).map_err(FaultError::on_path("making", directory))?;
        let file = File::create(image).map_err(FaultError::on_path("making", image))?;
        file.set_len(bytes).map_err(FaultError::on_path("sizing", image))?;
        drop(file);
        let made = run(Command::new(find("mkfs.ext4")?).args(["-q", "-F", "-m", "0"]).arg(image));
        made.map_err(|error| Unsupported::new(Means::LoopDevice, &error))?;
        mount_image(directory, image).map_err(|error| Unsupported::new(Means::LoopDevice, &error))?;
        let kind = Kind::Image { image: image.to_owned(), cuts: 0 };
        Ok(Disk { directory: directory.to_owned(), kind, is_frozen: false })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes that can still be written.
    pub fn free_bytes(&self) -> Result<u64, FaultError> {
        let stats = statvfs(&self.directory)
            .map_err(|error| FaultError::on_path("asking", &self.directory)(error.into()))?;
        Ok(stats.blocks_available() as u64 * stats.fragment_size() as u64)
    }

    /// Fills it except for `leave_bytes` bytes, as somebody else who writes there does.
    pub fn fill(&mut self, leave_bytes: u64) -> Result<(), FaultError> {
        self.unfill()?;
        match &self.kind {
            // Ballast would take the machine's memory.
            Kind::Memory { bytes } => self.shrink(*bytes, leave_bytes),
            Kind::Image { .. } => {
                let path = self.directory.join(BALLAST);
                let ballast = File::create(&path).map_err(FaultError::on_path("making", &path))?;
                let length = self.free_bytes()?.saturating_sub(leave_bytes);
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                if length == 0 {
                    return Ok(());
                }
                match nix::fcntl::posix_fallocate(&ballast, 0, length) {
                    // The file system needs some space for itself: it is full all the same.
                    Ok(()) | Err(Errno::ENOSPC) => Ok(()),
                    Err(error) => Err(FaultError::on_path("filling", &path)(error.into())),
                }
            }
        }
    }

    /// Ends [`Disk::fill`].
    pub fn unfill(&mut self) -> Result<(), FaultError> {
        match &self.kind {
            Kind::Memory { bytes } => self.resize(*bytes),
            Kind::Image { .. } => match std::fs::remove_file(self.directory.join(BALLAST)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(FaultError::on_path("emptying", &self.directory)(error))
                }
                _ => Ok(()),
            },
        }
    }

    fn shrink(&self, bytes: u64, leave_bytes: u64) -> Result<(), FaultError> {
        let mut tries = SHRINK_TRIES_MAX;
        loop {
            let used = bytes.saturating_sub(self.free_bytes()?);
            match self.resize((used + leave_bytes).max(PAGE_BYTES)) {
                // Somebody wrote in between, and more is used than that.
                Err(FaultError::System { .. }) if tries > 0 => tries -= 1,
                result => return result,
            }
        }
    }

    fn resize(&self, bytes: u64) -> Result<(), FaultError> {
        mount_memory(&self.directory, bytes, MsFlags::MS_REMOUNT)
            .map_err(FaultError::on_path("resizing", &self.directory))
    }

    /// Every write and flush hangs until [`Disk::thaw`]. A process that waits for it cannot be killed meanwhile.
    pub fn freeze(&mut self) -> Result<(), FaultError> {
        run(Command::new(find("fsfreeze")?).arg("--freeze").arg(&self.directory))
            .map_err(|error| Unsupported::new(Means::LoopDevice, &error))?;
        self.is_frozen = true;
        Ok(())
    }

    /// Ends [`Disk::freeze`].
    pub fn thaw(&mut self) -> Result<(), FaultError> {
        if self.is_frozen {
            run(Command::new(find("fsfreeze")?).arg("--unfreeze").arg(&self.directory))
                .map_err(FaultError::on_path("thawing", &self.directory))?;
            self.is_frozen = false;
        }
        Ok(())
    }

    /// The power fails: what was written and not flushed is gone. Kill the processes that write there first. The disk
    /// is mounted again as its device had it at that moment, at the same place.
    pub fn power_cut(&mut self) -> Result<(), FaultError> {
        let Kind::Image { image, cuts } = &mut self.kind else {
            return Err(
                Unsupported::because(Means::LoopDevice, "a disk in memory has no device behind it").into()
            );
        };
        // The device is the image: the file system's own cache is not in it. Nothing may be flushed before the copy.
        let copy = image.with_extension(format!("cut-{}", *cuts + 1));
        let copied = run(Command::new("cp").arg("--sparse=always").arg("--").arg(&image).arg(&copy));
        copied.map_err(FaultError::on_path("copying", image))?;
        let gone = umount2(&self.directory, MntFlags::MNT_DETACH);
        gone.map_err(|error| FaultError::on_path("unmounting", &self.directory)(error.into()))?;
        mount_image(&self.directory, &copy).map_err(FaultError::on_path("mounting", &copy))?;
        // The old one holds what a machine with power would have; nobody may read it by mistake.
        std::fs::remove_file(&image).map_err(FaultError::on_path("removing", image))?;
        *image = copy;
        *cuts += 1;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.thaw();
        // Lazily: a process that is being killed may still have a file of it.
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

fn mount_memory(directory: &Path, bytes: u64, flags: MsFlags) -> io::Result<()> {
    let options = format!("size={bytes},mode=0755");
    mount(Some("muster-chaos"), directory, Some("tmpfs"), flags, Some(options.as_str()))?;
    Ok(())
}

fn mount_image(directory: &Path, image: &Path) -> io::Result<()> {
    let options = format!("loop,commit={COMMIT_S}");
    run(Command::new("mount").args(["-t", "ext4", "-o", &options]).arg(image).arg(directory))
}

fn find(program: &str) -> Result<PathBuf, Unsupported> {
    let missing = || Unsupported::because(Means::LoopDevice, format!("there is no program {program}"));
    tools::program(program).ok_or_else(missing)
}

/// Runs a program to its end; what it said is the error.
fn run(command: &mut Command) -> io::Result<()> {
    let ran = command.output()?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    Err(io::Error::other(format!("{}: {}", command.get_program().to_string_lossy(), said.trim())))
}
