//! XIDs in the kernel's log: `NVRM: Xid (PCI:0000:1b:00): 79, pid=…`.
//!
//! A second source next to the library: a device that fell off the bus is often reported here alone.

use super::Source;
use muster_types::health::{Finding, Observation};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

/// XIDs that wait to be looked at; what comes on top is dropped: a storm says the same again and again.
const WAITING_MAX: usize = 256;
/// Bytes of one record of the kernel's log, at most 8 KiB by its own bound.
const RECORD_BYTES: usize = 16 << 10;
/// From one look at a file to the next; `/dev/kmsg` blocks instead.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Where a device is on the PCI bus: domain, bus, device.
pub type Bus = (u32, u32, u32);

/// One XID of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The code.
    pub code: u16,
    /// The device's local number; none for one that is not known here.
    pub device: Option<u16>,
    /// What stands behind the code.
    pub detail: String,
}

impl Xid {
    /// As it is reported.
    pub(crate) fn observation(self) -> Observation {
        Observation { detail: self.detail, ..Observation::of(Finding::Xid(self.code), self.device) }
    }
}

/// `0000:1b:00.0`, `00000000:1B:00.0` and `0000:1b:00` are one place.
#[must_use]
pub fn bus_of(text: &str) -> Option<Bus> {
    let mut parts = text.split([':', '.']);
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    Some((part()?, part()?, part()?))
}

/// The devices that the driver lists, in the order of their numbers.
pub(crate) fn buses_of_host() -> BTreeMap<Bus, u16> {
    let Ok(entries) = std::fs::read_dir("/proc/driver/nvidia/gpus") else { return BTreeMap::new() };
    let mut buses: Vec<Bus> =
        entries.flatten().filter_map(|entry| bus_of(&entry.file_name().to_string_lossy())).collect();
    buses.sort_unstable();
    buses.into_iter().zip(0..).collect()
}

/// The XID in a line of the log, if there is one.
fn parse(line: &str, buses: &BTreeMap<Bus, u16>) -> Option<Xid> {
    let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
    let (place, rest) = rest.split_once("): ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let code = rest[..end].parse().ok()?;
    let device = bus_of(place).and_then(|bus| buses.get(&bus).copied());
    let mut detail: String =
        rest[end..].trim_start_matches([',', ' ']).trim_end().chars().take(120).collect();
    if device.is_none() {
        detail = format!("PCI {place}: {detail}").chars().take(120).collect();
    }
    // Counted in bytes where it is bounded.
    while detail.len() > muster_types::limits::HEALTH_DETAIL_BYTES_MAX {
        detail.pop();
    }
    Some(Xid { code, device, detail })
}

/// Follows the log from now on. The sender's thread ends with the process: a read of `/dev/kmsg` has no other end.
pub(crate) fn follow(source: &Source, buses: BTreeMap<Bus, u16>) -> mpsc::Receiver<Xid> {
    let (xids, found) = mpsc::channel(WAITING_MAX);
    let path = match source {
        Source::Off => return found,
        Source::File(path) => path.clone(),
        // Without such devices nobody reads a log that has to be read with special rights.
        Source::Auto if buses.is_empty() => return found,
        Source::Auto => PathBuf::from("/dev/kmsg"),
    };
    let reader = std::thread::Builder::new().name("kernel-log".to_owned());
    let begun = reader.spawn(move || {
        if let Err(error) = read(&path, &buses, &xids) {
            tracing::warn!(path = %path.display(), %error, "the kernel's log is not read; XIDs come from NVML alone");
        }
    });
    if let Err(error) = begun {
        tracing::warn!(%error, "the kernel's log is not read");
    }
    found
}

fn read(path: &Path, buses: &BTreeMap<Bus, u16>, xids: &mpsc::Sender<Xid>) -> std::io::Result<()> {
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::End(0))?;
    let mut buffer = vec![0; RECORD_BYTES];
    let mut rest = String::new();
    while !xids.is_closed() {
        match file.read(&mut buffer) {
            Ok(0) => std::thread::sleep(LOOK_AGAIN),
            Ok(length) => rest.push_str(&String::from_utf8_lossy(&buffer[..length])),
            // Records were overwritten before they were read: the next read goes on behind them.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        while let Some((line, behind)) = rest.split_once('\n') {
            if let Some(xid) = parse(line, buses) {
                // A full queue holds the same already.
                let _ = xids.try_send(xid);
            }
            rest = behind.to_owned();
        }
        if rest.len() > RECORD_BYTES {
            rest.clear();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn buses() -> BTreeMap<Bus, u16> {
        BTreeMap::from([((0, 0x1b, 0), 0), ((0, 0x3b, 0), 1)])
    }

    #[test]
    fn lines_of_the_log() {
        let line =
            "4,1234,99,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.";
        let xid = parse(line, &buses()).unwrap();
        assert_eq!((xid.code, xid.device), (79, Some(1)));
        assert_eq!(xid.detail, "pid=1234, name=python, GPU has fallen off the bus.");
        let old = parse("NVRM: Xid (PCI:0000:ff:00): 13", &buses()).unwrap();
        assert_eq!((old.code, old.device, old.detail.as_str()), (13, None, "PCI 0000:ff:00: "));
        let huge = format!("NVRM: Xid (PCI:0000:1b:00): 31, {}", "é".repeat(9_000));
        assert!(parse(&huge, &buses()).unwrap().detail.len() <= 160);
        for nothing in [
            "",
            "NVRM: Xid (PCI:",
            "NVRM: Xid (PCI:0000:1b:00): ",
            "NVRM: Xid (PCI:0000:1b:00): 70000",
            "usb 1-1: new",
        ] {
            assert_eq!(parse(nothing, &buses()), None, "{nothing:?}");
        }
        assert_eq!(bus_of("00000000:1B:00.0"), bus_of("0000:1b:00"));
    }

    #[tokio::test]
    async fn a_growing_file_is_followed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "NVRM: Xid (PCI:0000:1b:00): 13, before").unwrap();
        let mut xids = follow(&Source::File(file.path().to_owned()), buses());
        // It is open once it waits for more; what was there before is not told.
        let told = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                writeln!(file, "noise\nNVRM: Xid (PCI:0000:1b:00): 62, after").unwrap();
                tokio::select! {
                    xid = xids.recv() => return xid.unwrap(),
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
        });
        let told = told.await.unwrap();
        assert_eq!((told.code, told.device, told.detail.as_str()), (62, Some(0), "after"));
    }
}
