"""A program for one GPU that needs nothing but NVIDIA's driver: it loads a kernel of six instructions through libcuda.

    cuda.py devices      prints the UUID of each device that this process sees, a line each
    cuda.py compute      has the first device write a number, and prints it
    cuda.py fault        has it write where nothing is: the driver reports an Xid and ends the context; exit code 3
    cuda.py hold MIB     holds memory of the first device until it is ended, and prints "holding" once it does
"""

import ctypes
import signal
import sys

KERNEL = b"""
.version 7.0
.target sm_52
.address_size 64
.visible .entry store(.param .u64 to)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [to];
  mov.u32 %r1, 42;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
FAULT_EXIT = 3


class CudaError(Exception):
    """What a call of the driver answered."""


cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise CudaError(f"{name} answered {code}")


def device_uuid(number):
    device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    call("cuDeviceGet", ctypes.byref(device), number)
    call("cuDeviceGetUuid", ctypes.byref(uuid), device)
    text = bytes(uuid).hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return "GPU-" + "-".join(parts)


def enter_context():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def allocate(size):
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    return address


def store(address):
    """Runs the kernel on one thread and waits for it."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), KERNEL)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"store")
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")


def main(words):
    call("cuInit", 0)
    if words[0] == "devices":
        count = ctypes.c_int()
        call("cuDeviceGetCount", ctypes.byref(count))
        for number in range(count.value):
            print(device_uuid(number))
        return 0
    enter_context()
    if words[0] == "compute":
        address, number = allocate(4), ctypes.c_uint32()
        store(address)
        call("cuMemcpyDtoH_v2", ctypes.byref(number), address, ctypes.c_size_t(4))
        print(number.value)
        return 0
    if words[0] == "fault":
        try:
            store(ctypes.c_uint64(8))
        except CudaError as error:
            print(error)
            return FAULT_EXIT
        return 0
    if words[0] == "hold":
        allocate(int(words[1]) << 20)
        print("holding", flush=True)
        signal.pause()
    raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:] or [""]))
    except CudaError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
