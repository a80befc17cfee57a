//! The functions that are used, with the layouts of `nvml.h`.

use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// A device or a set of events: the library's own pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: handles are names that the library gives out; its functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) const NONE: Handle = Handle(std::ptr::null_mut());
}

impl Default for Handle {
    fn default() -> Handle {
        Handle::NONE
    }
}

/// XIDs.
pub(crate) const EVENT_XID: c_ulonglong = 8;
/// XIDs alone: what else could be watched is read from the state.
pub(crate) const EVENTS: c_ulonglong = EVENT_XID;
/// Size and number of the second layout of `nvmlGpuFabricInfoV_t`.
pub(crate) const FABRIC_VERSION: c_uint = (size_of::<FabricInfo>() as c_uint) | (2 << 24);

#[derive(Default)]
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct PciInfo {
    bus_id_short: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device: c_uint,
    pci_subsystem: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct FabricInfo {
    pub(crate) version: c_uint,
    pub(crate) cluster: [u8; 16],
    pub(crate) status: c_uint,
    pub(crate) clique: c_uint,
    pub(crate) state: u8,
    pub(crate) health: c_uint,
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    pub(crate) status: c_uint,
    pub(crate) value: u64,
}

impl FieldValue {
    pub(crate) fn of(field: c_uint) -> FieldValue {
        FieldValue { field, ..FieldValue::default() }
    }
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct EventData {
    pub(crate) device: Handle,
    pub(crate) kind: c_ulonglong,
    pub(crate) data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

pub(crate) type DeviceText = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_uint;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_uint;
type Remapped = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> c_uint;

/// The library and its functions. What a driver may lack is optional.
pub(crate) struct Api {
    pub(crate) init: unsafe extern "C" fn() -> c_uint,
    shutdown: unsafe extern "C" fn() -> c_uint,
    pub(crate) driver_version: unsafe extern "C" fn(*mut c_char, c_uint) -> c_uint,
    pub(crate) device_count: Count,
    pub(crate) device_by_index: unsafe extern "C" fn(c_uint, *mut Handle) -> c_uint,
    pub(crate) uuid: DeviceText,
    pub(crate) name: DeviceText,
    pub(crate) memory: unsafe extern "C" fn(Handle, *mut Memory) -> c_uint,
    pub(crate) pci: unsafe extern "C" fn(Handle, *mut PciInfo) -> c_uint,
    pub(crate) ecc: Option<unsafe extern "C" fn(Handle, c_int, c_int, *mut c_ulonglong) -> c_uint>,
    pub(crate) temperature: Option<unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_uint>,
    pub(crate) clock_reasons: Option<unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_uint>,
    pub(crate) remapped_rows: Option<Remapped>,
    pub(crate) mig_mode: Option<unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_uint>,
    pub(crate) fabric: Option<unsafe extern "C" fn(Handle, *mut FabricInfo) -> c_uint>,
    pub(crate) field_values: Option<unsafe extern "C" fn(Handle, c_int, *mut FieldValue) -> c_uint>,
    pub(crate) p2p_status: Option<unsafe extern "C" fn(Handle, Handle, c_int, *mut c_uint) -> c_uint>,
    pub(crate) event_set_create: Option<unsafe extern "C" fn(*mut Handle) -> c_uint>,
    pub(crate) register_events: Option<unsafe extern "C" fn(Handle, c_ulonglong, Handle) -> c_uint>,
    pub(crate) event_set_wait: Option<unsafe extern "C" fn(Handle, *mut EventData, c_uint) -> c_uint>,
    pub(crate) event_set_free: Option<unsafe extern "C" fn(Handle) -> c_uint>,
    /// Last: what is above points into it.
    _library: Library,
}

impl Api {
    /// Finds the functions; the name of one that every version has and this one lacks.
    pub(crate) fn load(library: Library) -> Result<Api, &'static str> {
        /// The function of a name.
        ///
        /// # Safety
        /// The name stands for a function of exactly this type.
        unsafe fn find<T: Copy>(library: &Library, name: &str) -> Option<T> {
            // SAFETY: the caller's.
            unsafe { library.get::<T>(name.as_bytes()).ok().map(|symbol| *symbol) }
        }
        macro_rules! wanted {
            ($name:literal) => {
                // SAFETY: the type of the field is that of the function of this name in `nvml.h`.
                unsafe { find(&library, $name) }.ok_or($name)?
            };
        }
        macro_rules! optional {
            ($($name:literal),+) => {
                // SAFETY: as above; the names stand for functions of one type.
                None$(.or_else(|| unsafe { find(&library, $name) }))+
            };
        }
        Ok(Api {
            init: wanted!("nvmlInit_v2"),
            shutdown: wanted!("nvmlShutdown"),
            driver_version: wanted!("nvmlSystemGetDriverVersion"),
            device_count: wanted!("nvmlDeviceGetCount_v2"),
            device_by_index: wanted!("nvmlDeviceGetHandleByIndex_v2"),
            uuid: wanted!("nvmlDeviceGetUUID"),
            name: wanted!("nvmlDeviceGetName"),
            memory: wanted!("nvmlDeviceGetMemoryInfo"),
            pci: wanted!("nvmlDeviceGetPciInfo_v3"),
            ecc: optional!("nvmlDeviceGetTotalEccErrors"),
            temperature: optional!("nvmlDeviceGetTemperature"),
            // The second is the name before 2023.
            clock_reasons: optional!(
                "nvmlDeviceGetCurrentClocksEventReasons",
                "nvmlDeviceGetCurrentClocksThrottleReasons"
            ),
            remapped_rows: optional!("nvmlDeviceGetRemappedRows"),
            mig_mode: optional!("nvmlDeviceGetMigMode"),
            fabric: optional!("nvmlDeviceGetGpuFabricInfoV"),
            field_values: optional!("nvmlDeviceGetFieldValues"),
            p2p_status: optional!("nvmlDeviceGetP2PStatus"),
            event_set_create: optional!("nvmlEventSetCreate"),
            register_events: optional!("nvmlDeviceRegisterEvents"),
            event_set_wait: optional!("nvmlEventSetWait_v2"),
            event_set_free: optional!("nvmlEventSetFree"),
            _library: library,
        })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // SAFETY: nobody holds the library any more; a second shutdown would be an error that changes nothing.
        let _ = unsafe { (self.shutdown)() };
    }
}
