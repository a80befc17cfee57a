//! NVIDIA's management library, loaded at run time.
//!
//! Nothing is linked: a host without the library has no such devices, which is an answer and no error. Only what
//! the agent asks is here, by the names and layouts of `nvml.h` (its ABI is append-only: a function's suffix rises
//! when its layout changes). A function that an older driver lacks is "not supported", like one that its device
//! lacks.
//!
//! **Invariant:** only this crate and `device-filter` have foreign calls; no pointer leaves it, and no call is made after the shutdown.
//! Every call may block for as long as the driver likes: the caller makes them on a dedicated thread.
#![allow(unsafe_code)]

mod raw;

use raw::{Api, Handle};
use std::ffi::{CStr, c_char, c_uint};
use std::path::Path;
use std::sync::Arc;

/// File names that the library has, in the order they are tried.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Bytes of the longest name, version or identifier.
const TEXT_BYTES: usize = 96;

/// NVML's field that holds the recovery action.
const FIELD_RECOVERY_ACTION: c_uint = 230;

/// What a call came back with, when it did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVML says {name} ({code})", name = name_of(*code))]
pub struct NvmlError {
    /// As NVML numbers it.
    pub code: u32,
}

const NOT_SUPPORTED: u32 = 3;
const TIMEOUT: u32 = 10;
const FUNCTION_NOT_FOUND: u32 = 13;
const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;

fn name_of(code: u32) -> &'static str {
    match code {
        1 => "uninitialized",
        2 => "invalid argument",
        NOT_SUPPORTED => "not supported",
        4 => "no permission",
        6 => "not found",
        9 => "driver not loaded",
        TIMEOUT => "timeout",
        12 => "library not found",
        FUNCTION_NOT_FOUND => "function not found",
        GPU_IS_LOST => "GPU is lost",
        RESET_REQUIRED => "reset required",
        17 => "the operating system has blocked the request",
        18 => "library and driver do not match",
        _ => "unknown error",
    }
}

impl NvmlError {
    /// Whether the device is not there any more, or does not answer.
    #[must_use]
    pub fn is_lost(self) -> bool {
        // 999 is what a device that fell off the bus answers to some calls; alone it says too little.
        matches!(self.code, GPU_IS_LOST | 6)
    }

    /// Whether the device answers nothing before it is reset.
    #[must_use]
    pub fn needs_reset(self) -> bool {
        self.code == RESET_REQUIRED
    }
}

/// Why the library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is none here.
    #[error("there is no NVML library: {0}")]
    Absent(String),
    /// It is there and lacks what every version has.
    #[error("the NVML library lacks {0}")]
    Incomplete(&'static str),
    /// It is there and its driver is not, or is another version's.
    #[error("start NVML")]
    Init(#[source] NvmlError),
}

type Result<T> = std::result::Result<T, NvmlError>;

fn checked(code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(NvmlError { code }) }
}

fn text(buffer: &[c_char; TEXT_BYTES]) -> String {
    // The library has terminated it; if not, it is cut at its last byte.
    let bytes: Vec<u8> = buffer.iter().map(|c| c.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The library, started.
pub struct Nvml {
    api: Arc<Api>,
}

/// One device of the host.
#[derive(Clone)]
pub struct Device {
    api: Arc<Api>,
    handle: Handle,
}

/// Where a device is in its NVLink fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// What its registration came back with; 0 is success.
    pub status: u32,
    /// The cluster of NVLink domains.
    pub cluster: [u8; 16],
    /// The clique in that cluster.
    pub clique: u32,
    /// Health, in fields of bits.
    pub health: u32,
}

impl Fabric {
    /// What is wrong with its part of the fabric, in words; none when nothing is.
    #[must_use]
    pub fn trouble(&self) -> Option<&'static str> {
        // Two bits each: 0 is not supported, 1 true, 2 false; the last has four bits, and 0 and 1 are good.
        let said = |shift: u32| (self.health >> shift) & 3 == 1;
        match self {
            _ if self.state == 3 && self.status != 0 => Some("its registration has failed"),
            _ if self.state != 3 => Some("its registration is not completed"),
            _ if said(0) => Some("its bandwidth is degraded"),
            _ if said(2) => Some("its routes are being recovered"),
            _ if said(4) => Some("its routes are unhealthy"),
            _ if said(6) => Some("it recovers from an access timeout"),
            _ if (self.health >> 8) & 15 > 1 => Some("it is configured wrongly"),
            _ => None,
        }
    }
}

/// Rows of memory that were or will be remapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedRows {
    /// Whether some will be at the next reset.
    pub pending: bool,
    /// Whether some could not be.
    pub failed: bool,
}

/// Something that happened on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidEvent {
    /// The device's number; none when it is not known any more.
    pub device: Option<u32>,
    /// The code.
    pub xid: u64,
}

impl Nvml {
    /// Loads and starts the library: this file, or where the system keeps it.
    ///
    /// # Errors
    /// When there is none, or it does not start.
    pub fn open(path: Option<&Path>) -> std::result::Result<Nvml, LoadError> {
        let mut why = String::new();
        let candidates: Vec<&Path> = match path {
            Some(path) => vec![path],
            None => NAMES.iter().map(Path::new).collect(),
        };
        for candidate in candidates {
            // SAFETY: the operator's own file, or the system's driver library, whose initialisers are trusted like
            // those of every library of the system.
            match unsafe { libloading::Library::new(candidate) } {
                Ok(library) => {
                    let api = Api::load(library).map_err(LoadError::Incomplete)?;
                    // SAFETY: takes no argument.
                    checked(unsafe { (api.init)() }).map_err(LoadError::Init)?;
                    return Ok(Nvml { api: Arc::new(api) });
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(LoadError::Absent(why))
    }

    /// The driver's version.
    ///
    /// # Errors
    /// As NVML says.
    pub fn driver_version(&self) -> Result<String> {
        let mut buffer = [0; TEXT_BYTES];
        // SAFETY: the buffer is as long as the call is told.
        checked(unsafe { (self.api.driver_version)(buffer.as_mut_ptr(), TEXT_BYTES as c_uint) })?;
        Ok(text(&buffer))
    }

    /// How many devices there are, those that are lost among them.
    ///
    /// # Errors
    /// As NVML says.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: a place for one number.
        checked(unsafe { (self.api.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// A device by its number, in the order of the PCI bus.
    ///
    /// # Errors
    /// As NVML says; a device that is lost has no handle.
    pub fn device(&self, index: u32) -> Result<Device> {
        let mut handle = Handle::NONE;
        // SAFETY: a place for one handle.
        checked(unsafe { (self.api.device_by_index)(index, &raw mut handle) })?;
        Ok(Device { api: Arc::clone(&self.api), handle })
    }

    /// Watches devices for XIDs. None when no device can be watched.
    ///
    /// # Errors
    /// As NVML says.
    pub fn watch(&self, devices: &[(u32, Device)]) -> Result<Option<Watch>> {
        let (Some(create), Some(register)) = (self.api.event_set_create, self.api.register_events) else {
            return Ok(None);
        };
        let mut set = Handle::NONE;
        // SAFETY: a place for one handle.
        checked(unsafe { create(&raw mut set) })?;
        let mut watch = Watch { api: Arc::clone(&self.api), set, devices: Vec::new() };
        for (index, device) in devices {
            // SAFETY: both handles are of this library, and the set is freed with the watch alone.
            let registered = checked(unsafe { register(device.handle, raw::EVENTS, set) });
            if registered.is_ok() {
                watch.devices.push((device.handle, *index));
            }
        }
        Ok((!watch.devices.is_empty()).then_some(watch))
    }
}

impl Device {
    fn text(&self, call: raw::DeviceText) -> Result<String> {
        let mut buffer = [0; TEXT_BYTES];
        // SAFETY: the handle is this library's, and the buffer is as long as the call is told.
        checked(unsafe { call(self.handle, buffer.as_mut_ptr(), TEXT_BYTES as c_uint) })?;
        Ok(text(&buffer))
    }

    /// Its identity: `GPU-…`.
    ///
    /// # Errors
    /// As NVML says.
    pub fn uuid(&self) -> Result<String> {
        self.text(self.api.uuid)
    }

    /// Its model.
    ///
    /// # Errors
    /// As NVML says.
    pub fn name(&self) -> Result<String> {
        self.text(self.api.name)
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// As NVML says.
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut memory = raw::Memory::default();
        // SAFETY: the handle is this library's, and the place has the function's layout.
        checked(unsafe { (self.api.memory)(self.handle, &raw mut memory) })?;
        Ok(memory.total)
    }

    /// Where it is on the PCI bus: `00000000:1B:00.0`.
    ///
    /// # Errors
    /// As NVML says.
    pub fn pci_bus(&self) -> Result<String> {
        let mut pci = raw::PciInfo::default();
        // SAFETY: as above.
        checked(unsafe { (self.api.pci)(self.handle, &raw mut pci) })?;
        let bytes: Vec<u8> = pci.bus_id.iter().map(|c| c.to_ne_bytes()[0]).collect();
        Ok(CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default())
    }

    /// Memory errors that could not be corrected since the driver was loaded.
    ///
    /// # Errors
    /// As NVML says.
    pub fn ecc_uncorrected(&self) -> Result<u64> {
        let call = self.api.ecc.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut count = 0;
        // SAFETY: as above; 1 is uncorrected, 0 volatile.
        checked(unsafe { call(self.handle, 1, 0, &raw mut count) })?;
        Ok(count)
    }

    /// Degrees Celsius.
    ///
    /// # Errors
    /// As NVML says.
    pub fn temperature_c(&self) -> Result<u32> {
        let call = self.api.temperature.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut degrees = 0;
        // SAFETY: as above; 0 is the sensor of the chip.
        checked(unsafe { call(self.handle, 0, &raw mut degrees) })?;
        Ok(degrees)
    }

    /// Why its clocks are not higher, as a mask of bits.
    ///
    /// # Errors
    /// As NVML says.
    pub fn clock_reasons(&self) -> Result<u64> {
        let call = self.api.clock_reasons.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut mask = 0;
        // SAFETY: as above.
        checked(unsafe { call(self.handle, &raw mut mask) })?;
        Ok(mask)
    }

    /// Its remapped rows.
    ///
    /// # Errors
    /// As NVML says.
    pub fn remapped_rows(&self) -> Result<RemappedRows> {
        let call = self.api.remapped_rows.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
        // SAFETY: as above.
        checked(unsafe {
            call(self.handle, &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed)
        })?;
        Ok(RemappedRows { pending: pending != 0, failed: failed != 0 })
    }

    /// Whether it is divided into instances.
    ///
    /// # Errors
    /// As NVML says.
    pub fn is_divided(&self) -> Result<bool> {
        let call = self.api.mig_mode.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: as above.
        checked(unsafe { call(self.handle, &raw mut current, &raw mut pending) })?;
        Ok(current == 1)
    }

    /// Its place in an NVLink fabric; none where it has none.
    ///
    /// # Errors
    /// As NVML says.
    pub fn fabric(&self) -> Result<Option<Fabric>> {
        let call = self.api.fabric.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut info = raw::FabricInfo { version: raw::FABRIC_VERSION, ..raw::FabricInfo::default() };
        // SAFETY: as above; the version tells the library which layout it is.
        checked(unsafe { call(self.handle, &raw mut info) })?;
        Ok((info.state != 0).then_some(Fabric {
            state: info.state,
            status: info.status,
            cluster: info.cluster,
            clique: info.clique,
            health: info.health,
        }))
    }

    /// What the driver asks for so that it works again, as NVML numbers it.
    ///
    /// # Errors
    /// As NVML says.
    pub fn recovery_action(&self) -> Result<u32> {
        let call = self.api.field_values.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut field = raw::FieldValue::of(FIELD_RECOVERY_ACTION);
        // SAFETY: as above, with one field.
        checked(unsafe { call(self.handle, 1, &raw mut field) })?;
        checked(field.status)?;
        // Every kind of number stands at the beginning of its place.
        let value = field.value.to_ne_bytes();
        Ok(u32::from_ne_bytes([value[0], value[1], value[2], value[3]]))
    }

    /// Whether NVLink connects it with another device of the host.
    ///
    /// # Errors
    /// As NVML says.
    pub fn is_linked(&self, other: &Device) -> Result<bool> {
        let call = self.api.p2p_status.ok_or(NvmlError { code: FUNCTION_NOT_FOUND })?;
        let mut status = u32::MAX;
        // SAFETY: both handles are this library's; 2 asks for NVLink.
        checked(unsafe { call(self.handle, other.handle, 2, &raw mut status) })?;
        Ok(status == 0)
    }
}

/// What happens on some devices.
pub struct Watch {
    api: Arc<Api>,
    set: Handle,
    devices: Vec<(Handle, u32)>,
}

impl Watch {
    /// The next XID; none when there was none for `timeout_ms` milliseconds, or another event.
    ///
    /// # Errors
    /// As NVML says.
    pub fn next(&self, timeout_ms: u32) -> Result<Option<XidEvent>> {
        let Some(wait) = self.api.event_set_wait else { return Err(NvmlError { code: FUNCTION_NOT_FOUND }) };
        let mut event = raw::EventData::default();
        // SAFETY: the set exists as long as the watch, and the place has the function's layout.
        match checked(unsafe { wait(self.set, &raw mut event, timeout_ms) }) {
            Err(NvmlError { code: TIMEOUT }) => Ok(None),
            Err(error) => Err(error),
            Ok(()) if event.kind != raw::EVENT_XID => Ok(None),
            Ok(()) => {
                let known = self.devices.iter().find(|(handle, _)| *handle == event.device);
                Ok(Some(XidEvent { device: known.map(|(_, index)| *index), xid: event.data }))
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(free) = self.api.event_set_free {
            // SAFETY: the set is this watch's own, and used by nobody after this.
            let _ = unsafe { free(self.set) };
        }
    }
}
