//! A library with NVML's names that plays what a script says, for hosts without such devices.
//!
//! The script is the file next to the library that ends in `.script` instead of `.so`. It is read again at every
//! call, so that a test changes the devices under a running agent; each copy of the library plays its own:
//!
//! ```text
//! driver 570.86.15
//! gpu name=NVIDIA_H100_80GB_HBM3 temp=41
//! gpu name=NVIDIA_H100_80GB_HBM3 ecc=2 reasons=0x40 remap=pending recovery=1 fabric=3 health=0x1 clique=7
//! gpu name=NVIDIA_H100_80GB_HBM3 lost
//! xid 1 0 79
//! hang
//! ```
//!
//! A `gpu` line is a device; `lost` makes every call about it fail as a device that fell off the bus, `reset` as
//! one that needs a reset. `xid SEQUENCE DEVICE CODE` happens once: sequences rise. `init=CODE` is what starting the
//! library comes back with. While there is a `hang` line, no call returns.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SUCCESS: c_uint = 0;
const INVALID: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const TIMEOUT: c_uint = 10;
const LOST: c_uint = 15;
const RESET_REQUIRED: c_uint = 16;

/// How often a call that waits looks at the script.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The last XID that was told.
static TOLD: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Script {
    driver: String,
    init: c_uint,
    gpus: Vec<BTreeMap<String, String>>,
    xids: Vec<(u64, usize, u64)>,
    hangs: bool,
}

/// The file that this library was loaded from: the mapping that holds its code.
fn own_path() -> Option<PathBuf> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let here = nvmlShutdown as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        maps.lines().find_map(|line| {
            let (from, rest) = line.split_once('-')?;
            let (to, rest) = rest.split_once(' ')?;
            let bound = |text| usize::from_str_radix(text, 16).ok();
            let holds = (bound(from)?..bound(to)?).contains(&here);
            holds.then(|| rest.find('/').map(|at| PathBuf::from(&rest[at..])))?
        })
    };
    PATH.get_or_init(find).clone()
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Script {
    fn read() -> Script {
        let text = own_path().and_then(|path| std::fs::read_to_string(path.with_extension("script")).ok());
        let text = text.unwrap_or_default();
        let mut script = Script::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("driver") => script.driver = words.next().unwrap_or_default().to_owned(),
                Some("gpu") => {
                    let facts = words.map(|word| word.split_once('=').unwrap_or((word, "")));
                    script.gpus.push(facts.map(|(k, v)| (k.to_owned(), v.to_owned())).collect());
                }
                Some("xid") => {
                    let numbers: Vec<u64> = words.filter_map(number).collect();
                    if let [sequence, device, code] = numbers[..] {
                        script.xids.push((sequence, device as usize, code));
                    }
                }
                Some("hang") => script.hangs = true,
                Some(word) => {
                    if let Some(code) = word.strip_prefix("init=").and_then(number) {
                        script.init = code as c_uint;
                    }
                }
                None => {}
            }
        }
        script
    }

    /// As it is once nothing hangs.
    fn now() -> Script {
        loop {
            let script = Script::read();
            if !script.hangs {
                return script;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Handles are the device's number and one, so that none is null.
fn handle_of(index: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(index + 1)
}

fn index_of(handle: *mut c_void) -> Option<usize> {
    handle.addr().checked_sub(1)
}

/// What the script states of a device, or what a call about it comes back with.
fn gpu(handle: *mut c_void) -> Result<BTreeMap<String, String>, c_uint> {
    let index = index_of(handle).ok_or(INVALID)?;
    let gpu = Script::now().gpus.get(index).cloned().ok_or(INVALID)?;
    if gpu.contains_key("lost") {
        return Err(LOST);
    }
    if gpu.contains_key("reset") {
        return Err(RESET_REQUIRED);
    }
    Ok(gpu)
}

fn fact(gpu: &BTreeMap<String, String>, name: &str) -> Option<u64> {
    gpu.get(name).and_then(|text| number(text))
}

/// # Safety
/// `to` holds at least `length` bytes.
unsafe fn put_text(text: &str, to: *mut c_char, length: c_uint) -> c_uint {
    let length = length as usize;
    if to.is_null() || text.len() + 1 > length {
        return 7;
    }
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: within the length, by the check above.
        unsafe { to.add(at).write(c_char::from_ne_bytes([byte])) };
    }
    SUCCESS
}

/// # Safety
/// `to` is null or a place for a value.
unsafe fn put<T>(value: T, to: *mut T) -> c_uint {
    if to.is_null() {
        return INVALID;
    }
    // SAFETY: the caller's.
    unsafe { to.write(value) };
    SUCCESS
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> c_uint {
    Script::now().init
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> c_uint {
    // SAFETY: the caller's.
    unsafe { put_text(&Script::now().driver, to, length) }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_uint {
    // SAFETY: the caller's.
    unsafe { put(Script::now().gpus.len() as c_uint, to) }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut *mut c_void) -> c_uint {
    let handle = handle_of(index as usize);
    match gpu(handle) {
        // SAFETY: the caller's.
        Ok(_) => unsafe { put(handle, to) },
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: *mut c_void, to: *mut c_char, length: c_uint) -> c_uint {
    let index = index_of(device).unwrap_or_default();
    match gpu(device) {
        // SAFETY: the caller's.
        Ok(_) => unsafe { put_text(&format!("GPU-00000000-0000-0000-0000-{index:012}"), to, length) },
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: *mut c_void, to: *mut c_char, length: c_uint) -> c_uint {
    match gpu(device) {
        Ok(gpu) => {
            let name = gpu.get("name").map_or("NVIDIA H100 80GB HBM3".into(), |name| name.replace('_', " "));
            // SAFETY: the caller's.
            unsafe { put_text(&name, to, length) }
        }
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`: three numbers of 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, to: *mut [c_ulonglong; 3]) -> c_uint {
    match gpu(device) {
        Ok(gpu) => {
            let total = fact(&gpu, "memory").unwrap_or(80) << 30;
            // SAFETY: the caller's.
            unsafe { put([total, total, 0], to) }
        }
        Err(code) => code,
    }
}

/// As `nvmlPciInfo_t`.
#[repr(C)]
pub struct PciInfo {
    short: [c_char; 16],
    numbers: [c_uint; 5],
    bus_id: [c_char; 32],
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: *mut c_void, to: *mut PciInfo) -> c_uint {
    if let Err(code) = gpu(device) {
        return code;
    }
    let bus = index_of(device).unwrap_or_default() + 0x1b;
    let mut info = PciInfo { short: [0; 16], numbers: [0, bus as c_uint, 0, 0, 0], bus_id: [0; 32] };
    let long = format!("00000000:{bus:02X}:00.0");
    for (place, byte) in info.bus_id.iter_mut().zip(long.bytes()) {
        *place = c_char::from_ne_bytes([byte]);
    }
    // SAFETY: the caller's.
    unsafe { put(info, to) }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: *mut c_void,
    _kind: c_int,
    _counter: c_int,
    to: *mut c_ulonglong,
) -> c_uint {
    match gpu(device) {
        // SAFETY: the caller's.
        Ok(gpu) => unsafe { put(fact(&gpu, "ecc").unwrap_or(0), to) },
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: *mut c_void,
    _sensor: c_int,
    to: *mut c_uint,
) -> c_uint {
    match gpu(device) {
        // SAFETY: the caller's.
        Ok(gpu) => unsafe { put(fact(&gpu, "temp").unwrap_or(40) as c_uint, to) },
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(
    device: *mut c_void,
    to: *mut c_ulonglong,
) -> c_uint {
    match gpu(device) {
        // SAFETY: the caller's.
        Ok(gpu) => unsafe { put(fact(&gpu, "reasons").unwrap_or(1), to) },
        Err(code) => code,
    }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: *mut c_void,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> c_uint {
    let gpu = match gpu(device) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    let says = |word: &str| c_uint::from(gpu.get("remap").is_some_and(|text| text.contains(word)));
    for (value, to) in
        [(0, corrected), (0, uncorrected), (says("pending"), pending), (says("failed"), failed)]
    {
        // SAFETY: the caller's.
        unsafe { put(value, to) };
    }
    SUCCESS
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: *mut c_void,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    let gpu = match gpu(device) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    let mode = fact(&gpu, "mig").unwrap_or(0) as c_uint;
    // SAFETY: the caller's.
    unsafe { put(mode, current) | put(mode, pending) }
}

/// As the second layout of `nvmlGpuFabricInfoV_t`.
#[repr(C)]
pub struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_uint,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfoV(device: *mut c_void, to: *mut FabricInfo) -> c_uint {
    let gpu = match gpu(device) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    // SAFETY: the caller's: the version stands in its place.
    let version = unsafe { (*to).version };
    if version != (size_of::<FabricInfo>() as c_uint | 2 << 24) {
        return 25;
    }
    let fact = |name| fact(&gpu, name).unwrap_or(0) as c_uint;
    let (state, status) = (fact("fabric") as u8, fact("status"));
    let (clique, health) = (fact("clique"), fact("health"));
    // SAFETY: the caller's.
    unsafe { put(FabricInfo { version, cluster: [0xfa; 16], status, clique, state, health }, to) }
}

/// As `nvmlFieldValue_t`.
#[repr(C)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    times: [i64; 2],
    kind: c_uint,
    status: c_uint,
    value: u64,
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: *mut c_void,
    count: c_int,
    fields: *mut FieldValue,
) -> c_uint {
    let gpu = match gpu(device) {
        Ok(gpu) => gpu,
        Err(code) => return code,
    };
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller guarantees that there are `count` fields.
        let field = unsafe { &mut *fields.add(at) };
        let known = fact(&gpu, "recovery").filter(|_| field.field == 230);
        (field.kind, field.status) = (1, if known.is_some() { SUCCESS } else { NOT_SUPPORTED });
        field.value = known.unwrap_or(0);
    }
    SUCCESS
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetP2PStatus(
    one: *mut c_void,
    other: *mut c_void,
    _what: c_int,
    to: *mut c_uint,
) -> c_uint {
    let linked = |handle| gpu(handle).is_ok_and(|gpu| gpu.contains_key("nvlink"));
    // SAFETY: the caller's.
    unsafe { put(if linked(one) && linked(other) { 0 } else { 5 }, to) }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(to: *mut *mut c_void) -> c_uint {
    // SAFETY: the caller's.
    unsafe { put(handle_of(1_000), to) }
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> c_uint {
    SUCCESS
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceRegisterEvents(
    device: *mut c_void,
    _kinds: c_ulonglong,
    _set: *mut c_void,
) -> c_uint {
    gpu(device).err().unwrap_or(SUCCESS)
}

/// As `nvmlEventData_t`.
#[repr(C)]
pub struct EventData {
    device: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    instances: [c_uint; 2],
}

/// # Safety
/// As in `nvml.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    _set: *mut c_void,
    to: *mut EventData,
    timeout_ms: c_uint,
) -> c_uint {
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let told = TOLD.load(Ordering::Acquire);
        let script = Script::now();
        let next = script.xids.iter().filter(|(sequence, ..)| *sequence > told).min();
        if let Some((sequence, device, code)) = next {
            TOLD.store(*sequence, Ordering::Release);
            let event = EventData { device: handle_of(*device), kind: 8, data: *code, instances: [!0; 2] };
            // SAFETY: the caller's.
            return unsafe { put(event, to) };
        }
        if Instant::now() >= until {
            return TIMEOUT;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
