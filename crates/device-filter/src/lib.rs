//! Which device files the processes of a control group may open.
//!
//! In version 2 of control groups the kernel asks a program that is attached to the group (`BPF_PROG_TYPE_CGROUP_DEVICE`,
//! see `Documentation/admin-guide/cgroup-v2.rst`, "Device controller"). The program here is made from a list of character
//! devices: these may be opened, and nothing else may, block devices least of all. It stays as long as its group, and no
//! process of the group can take it off without the capability to do so.
//!
//! It takes root (`CAP_BPF` and `CAP_NET_ADMIN`, or `CAP_SYS_ADMIN`) and a kernel with `CONFIG_CGROUP_BPF`.
//!
//! **Invariant:** only this crate and `nvml` have foreign calls; no pointer leaves it, and what a call is given stays
//! valid until it returns.
#![allow(unsafe_code)]

use nix::libc;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Devices that one group may have: more than any host has files for.
pub const DEVICES_MAX: usize = 1_024;

/// Character devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Character {
    /// The driver's number.
    pub major: u32,
    /// The device's number; none for all of the driver's.
    pub minor: Option<u32>,
}

/// Lets the processes of a group open these devices, and no other. `group` is a directory of a version 2 hierarchy.
///
/// A second call adds to the first what is forbidden: a device has to be allowed by both.
///
/// # Errors
/// When the kernel refuses: no privilege, no such programs, no such group; or for more than [`DEVICES_MAX`] devices.
pub fn allow_only(group: &Path, devices: &[Character]) -> io::Result<()> {
    if devices.len() > DEVICES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many devices for one group"));
    }
    let group = File::open(group)?;
    let program = load(&program(devices))?;
    let mut attach = Attach {
        target: descriptor(&group),
        program: descriptor(&program),
        kind: CGROUP_DEVICE,
        flags: ALLOW_MULTI,
        replaced: 0,
    };
    bpf(PROG_ATTACH, &mut attach).map(drop)
}

// Numbers of `linux/bpf.h`, which is part of the kernel's stable interface.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
/// Other programs may be attached too, for example by a supervisor. A device has to be allowed by all of them.
const ALLOW_MULTI: u32 = 2;
/// What the kernel calls a character device in the context of the program.
const CHARACTER: i32 = 2;

/// What `PROG_LOAD` takes; later fields are zero for the kernel when they are not there.
#[repr(C, align(8))]
struct Load {
    kind: u32,
    instructions: u32,
    program: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// What `PROG_ATTACH` takes.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
    replaced: u32,
}

/// One instruction: the code, both registers, the offset of a jump or a field, and a value.
type Instruction = [u8; 8];

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    let (offset, value) = (offset.to_le_bytes(), value.to_le_bytes());
    // As this machine has them: all that Linux runs accelerators on are little-endian.
    [code, (from << 4) | to, offset[0], offset[1], value[0], value[1], value[2], value[3]]
}

// Codes of instructions: class, operation and source together.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x57;
const SET: u8 = 0xb7;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
const JUMP_UNLESS_EQUAL: u8 = 0x55;

/// The program: compares what is opened with each device of the list.
fn program(devices: &[Character]) -> Vec<Instruction> {
    // The context is in register 1: the kind and the access, the driver's number, the device's.
    let mut program = vec![
        instruction(LOAD_WORD, 2, 1, 0, 0),
        instruction(AND, 2, 0, 0, 0xffff),
        instruction(LOAD_WORD, 3, 1, 4, 0),
        instruction(LOAD_WORD, 4, 1, 8, 0),
    ];
    let forbid = [instruction(SET, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)];
    program.push(instruction(JUMP_UNLESS_EQUAL, 2, 0, 1, CHARACTER));
    // Over the two that forbid.
    program.push(instruction(JUMP, 0, 0, 2, 0));
    program.extend(forbid);
    for device in devices {
        let minor = device.minor.map(|minor| instruction(JUMP_UNLESS_EQUAL, 4, 0, 2, minor.cast_signed()));
        let rest = 2 + i16::from(minor.is_some());
        program.push(instruction(JUMP_UNLESS_EQUAL, 3, 0, rest, device.major.cast_signed()));
        program.extend(minor);
        program.extend([instruction(SET, 0, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)]);
    }
    program.extend(forbid);
    program
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut name = [0; 16];
    name[..6].copy_from_slice(b"muster");
    let license = c"Apache-2.0";
    let mut load = Load {
        kind: PROG_TYPE_CGROUP_DEVICE,
        instructions: u32::try_from(program.len()).map_err(io::Error::other)?,
        program: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name,
    };
    let descriptor = bpf(PROG_LOAD, &mut load)?;
    let descriptor = i32::try_from(descriptor).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for this call, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn descriptor(file: &impl AsRawFd) -> u32 {
    // An open descriptor is never negative.
    file.as_raw_fd().unsigned_abs()
}

/// One call of `bpf`(2).
fn bpf<T>(command: libc::c_long, argument: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the argument is of the command's layout and as large as stated, and what it points to outlives the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(argument), size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::Command;

    /// What the program answers, by a reading of the few instructions that it is made of.
    fn answer(program: &[Instruction], kind: u32, major: u32, minor: u32) -> u64 {
        // Opened for reading; the access stands above the kind.
        let context = [kind | (2 << 16), major, minor];
        let (mut registers, mut at) = ([0u64; 5], 0usize);
        loop {
            let [code, both, o0, o1, v0, v1, v2, v3] = program[at];
            let (to, offset) = (usize::from(both & 15), i16::from_le_bytes([o0, o1]));
            let value = i32::from_le_bytes([v0, v1, v2, v3]);
            at += 1;
            match code {
                LOAD_WORD => registers[to] = context[usize::try_from(offset).unwrap() / 4].into(),
                AND => registers[to] &= u64::from(value.cast_unsigned()),
                SET => registers[to] = u64::from(value.cast_unsigned()),
                JUMP => at += usize::try_from(offset).unwrap(),
                JUMP_UNLESS_EQUAL if registers[to] != u64::from(value.cast_unsigned()) => {
                    at += usize::try_from(offset).unwrap();
                }
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0],
                other => panic!("code {other:#x}"),
            }
        }
    }

    #[test]
    fn what_is_listed_may_be_opened_and_nothing_else() {
        let all_of = Character { major: 136, minor: None };
        let one = Character { major: 195, minor: Some(3) };
        let program = program(&[all_of, one]);
        for (kind, major, minor, allowed) in [
            (2, 195, 3, true),
            (2, 195, 2, false),
            (2, 194, 3, false),
            (2, 136, 0, true),
            (2, 136, 77, true),
            // A disk of the same numbers.
            (1, 195, 3, false),
            (1, 136, 0, false),
        ] {
            assert_eq!(answer(&program, kind, major, minor), u64::from(allowed), "{kind} {major} {minor}");
        }
        assert_eq!(answer(&super::program(&[]), 2, 1, 3), 0);
    }

    /// A group of this test's own; none where there can be none.
    fn group() -> Option<std::path::PathBuf> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
        let group = Path::new(&mount).join(format!("muster_device_filter_{}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        Some(group)
    }

    #[test]
    fn the_kernel_holds_a_group_to_its_list() {
        let Some(group) = group() else {
            let _ = writeln!(io::stderr(), "skipped: no version 2 control group can be made here");
            return;
        };
        let null = Character { major: 1, minor: Some(3) };
        let outcome = allow_only(&group, &[null]);
        let read = |file: &str| {
            let script = format!("echo $$ > {}/cgroup.procs && exec head -c 1 {file}", group.display());
            let ran = Command::new("sh").args(["-c", &script]).output().unwrap();
            (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
        };
        let (null, zero) = (read("/dev/null"), read("/dev/zero"));
        std::fs::remove_dir(&group).unwrap();
        if let Err(error) = outcome {
            let _ = writeln!(io::stderr(), "skipped: no device program can be loaded here: {error}");
            return;
        }
        assert!(null.0, "{null:?}");
        assert!(!zero.0 && zero.1.contains("Operation not permitted"), "{zero:?}");
        let many = vec![Character { major: 1, minor: None }; DEVICES_MAX + 1];
        assert!(allow_only(Path::new("/"), &many).is_err());
    }

    #[test]
    fn a_list_of_the_most_devices_is_a_program_that_the_kernel_takes() {
        let devices: Vec<_> =
            (0..DEVICES_MAX).map(|at| Character { major: 240, minor: u32::try_from(at).ok() }).collect();
        match load(&program(&devices)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let _ = writeln!(io::stderr(), "skipped: this takes root");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
