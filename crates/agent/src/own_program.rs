//! This program as a command: as it is, or as it was installed for a container whose image has another C library, or none.
//!
//! An installed program is three things in one directory: the program, the loader that the kernel would have started it with, and
//! the libraries that it is linked to. The loader is started with the program as its argument, so nothing of the image is used.
//!
//! **Invariant:** what is installed is what runs here, byte for byte.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names in the directory of an installed program.
const LOADER: &str = "loader";
const PROGRAM: &str = "program";
const LIBRARIES: &str = "lib";
/// What a loader is told where libraries are by.
const LIBRARY_PATH: &str = "--library-path";
/// How names of loaders begin: glibc's, its earlier ones, those of other machines, and musl's.
const LOADERS: [&str; 4] = ["ld-linux", "ld-2.", "ld64.", "ld-musl"];

/// The words that start the program of this directory.
pub(crate) fn installed_in(directory: &Path) -> Vec<String> {
    let at = |name: &str| directory.join(name).display().to_string();
    vec![at(LOADER), LIBRARY_PATH.to_owned(), at(LIBRARIES), at(PROGRAM)]
}

/// What a command of a program has behind the words that start it: its own arguments.
pub(crate) fn arguments_of(command: &[String]) -> &[String] {
    let is_installed = command.get(1).is_some_and(|word| word == LIBRARY_PATH);
    command.get(if is_installed { 4 } else { 1 }..).unwrap_or_default()
}

/// The words that start this program again.
///
/// # Errors
/// When the system does not say which one it is.
pub(crate) fn command() -> io::Result<Vec<String>> {
    let own = std::env::current_exe()?;
    let installed = own.parent().filter(|_| own.file_name().is_some_and(|name| name == LOADER));
    Ok(match installed {
        Some(directory) if directory.join(PROGRAM).exists() => installed_in(directory),
        _ => vec![own.display().to_string()],
    })
}

/// A command that starts this program again, whatever has become of its file and of the root directory.
pub(crate) fn again() -> Command {
    let mut again = Command::new("/proc/self/exe");
    // Of an installed program that is its loader.
    if let Ok(words) = command() {
        again.args(words.iter().skip(1));
    }
    again
}

/// What a program is made of on disk.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    loader: PathBuf,
    libraries: Vec<PathBuf>,
}

/// What is mapped into a process of `program`, as the kernel lists it.
fn parts(maps: &str, program: &Path) -> Option<Parts> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // Address, permissions, offset, device and inode come before the path.
        let Some(at) = line.find('/') else { continue };
        let path = PathBuf::from(&line[at..]);
        let is_code = line.split_whitespace().nth(1).is_some_and(|permissions| permissions.contains('x'));
        if is_code && path != program && !files.contains(&path) {
            files.push(path);
        }
    }
    let is_loader = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        LOADERS.iter().any(|begin| name.starts_with(begin))
    };
    let loader = files.iter().find(|path| is_loader(path))?.clone();
    // What is loaded later, by the names of users and hosts, is not among them: none is looked up before.
    Some(Parts { loader, libraries: files })
}

/// Copies this program, its loader and its libraries into a directory.
///
/// # Errors
/// One sentence, when it cannot be done.
pub(crate) fn install(directory: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("find this program: {error}"))?;
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| format!("read /proc/self/maps: {error}"))?;
    let parts = parts(&maps, &program)
        .ok_or("this program has no loader: one that is linked statically cannot be installed")?;
    let libraries = directory.join(LIBRARIES);
    std::fs::create_dir_all(&libraries).map_err(|error| format!("make {}: {error}", libraries.display()))?;
    copy(&program, &directory.join(PROGRAM))?;
    for library in &parts.libraries {
        let name = library.file_name().ok_or("a library has no name")?;
        copy(library, &libraries.join(name))?;
    }
    // Last: with it the program can be started.
    copy(&parts.loader, &directory.join(LOADER))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("copy {} to {}: {error}", from.display(), to.display());
    std::fs::copy(from, to).map_err(failed)?;
    std::fs::set_permissions(to, Permissions::from_mode(0o755)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lists_is_sorted() {
        let maps = "\
            5581-5582 r--p 00000000 fe:00 11 /usr/bin/muster-agent\n\
            5582-5583 r-xp 00001000 fe:00 11 /usr/bin/muster-agent\n\
            7f01-7f02 r-xp 00000000 fe:00 12 /usr/lib/x86_64-linux-gnu/libc.so.6\n\
            7f02-7f03 r--p 00000000 fe:00 14 /usr/share/locale/C/LC_CTYPE\n\
            7f03-7f04 r-xp 00000000 fe:00 13 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n\
            7f05-7f06 r-xp 00000000 00:00 0  [vdso]\n\
            7f06-7f07 rw-p 00000000 00:00 0\n";
        let found = parts(maps, Path::new("/usr/bin/muster-agent")).unwrap();
        let library = |name: &str| Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        assert_eq!(found.loader, library("ld-linux-x86-64.so.2"));
        assert_eq!(found.libraries, [library("libc.so.6"), library("ld-linux-x86-64.so.2")]);
        assert_eq!(parts("5582-5583 r-xp 0 fe:00 11 /bin/static\n", Path::new("/bin/static")), None);
        assert_eq!(parts("", Path::new("/bin/x")), None);
    }

    #[test]
    fn arguments_stand_behind_the_words_that_start_a_program() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(arguments_of(&words("/usr/bin/muster shim")), ["shim"]);
        let mut installed = installed_in(Path::new("/muster"));
        assert!(arguments_of(&installed).is_empty());
        installed.push("shim".to_owned());
        assert_eq!(arguments_of(&installed), ["shim"]);
        assert!(arguments_of(&[]).is_empty());
    }

    #[test]
    fn an_installed_program_starts_without_the_libraries_of_its_image() {
        let place = tempfile::tempdir().unwrap();
        install(place.path()).unwrap();
        // This program is the tests; it lists them.
        let words = installed_in(place.path());
        let out = Command::new(&words[0]).args(&words[1..]).arg("--list").env_clear().output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let listed = String::from_utf8(out.stdout).unwrap();
        assert!(listed.contains("an_installed_program_starts"), "{listed}");
    }
}
