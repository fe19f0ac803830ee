"""Why a provider of ONNX Runtime does not start on a card, and what to do about it.

Answers: which libraries are missing, of which version, and where are they to be had; is the driver missing, too old, or without a card;
which flag has TensorRT compute in a precision, by the version that is there? The
words that are looked for are those of ONNX Runtime 1.31.1's wheel and of the loader. Not here: which provider is asked for
(`ort_session.py`). Imports nothing of ours, because Triton's stub and the processes that time variants both load it.
"""

import contextlib
import ctypes
import io
import mmap
import pathlib
import re
import struct

DRIVER = "libcuda.so.1"
DRIVER_FACTS = pathlib.Path("/proc/driver/nvidia/version")
LEAST_DRIVER = {12: 525, 13: 580}  # CUDA's major version -> the first driver of it, by NVIDIA's release notes
CUDNN = "libcudnn.so.9"  # opened by name when a node asks for it, and in no table of the provider's library
CUFFT = {12: "libcufft.so.11", 13: "libcufft.so.12"}  # likewise

# precision -> the flag of ONNX Runtime's provider. TensorRT has such flags up to version 10; from 11 on it takes precision from
# the file's own types alone, and ignores them.
TENSORRT_FLAGS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}
UNTYPED_TENSORRT = 11

PT_LOAD, PT_DYNAMIC, DT_NEEDED, DT_STRTAB = 1, 2, 1, 5  # of ELF

# What a library's name begins with -> the wheel that has it. NVIDIA's wheels for CUDA 12 end with -cu12; from 13 on they have no such
# ending, but for cuDNN.
WHEELS = {
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libcudart": "nvidia-cuda-runtime",
    "libcudnn": "nvidia-cudnn",
    "libcufft": "nvidia-cufft",
    "libcurand": "nvidia-curand",
    "libnvrtc": "nvidia-cuda-nvrtc",
}
OLD_DRIVER = re.compile(r"undefined symbol: cu[A-Z]\w+|CUDA failure 3[56]\b|CUDA driver version is insufficient")
NO_CARD = re.compile(r"CUDA failure 100\b|no CUDA-capable device")
SHOW_CARD = "in a container start it with the card (--gpus, nvidia.com/gpu)"


def preload(ort):
    """Loads CUDA's and cuDNN's libraries out of this environment's nvidia-* wheels. What is missing is told later, with the way out."""
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def load_error(name):
    """What the loader says of a library; None where it loads it."""
    try:
        ctypes.CDLL(str(name))
    except OSError as e:
        return str(e)
    return None


def no_driver(ort):
    """Why there is no driver, and what to do; None where there is one."""
    if load_error(DRIVER) is None:
        return None
    least = LEAST_DRIVER.get(cuda_of(ort))
    wanted = f"driver {least} or newer" if least else "the driver"
    return f"a GPU is asked for, but there is no NVIDIA driver here ({DRIVER} cannot be loaded): install {wanted}, or {SHOW_CARD}"


def why_not_started(ort, library):
    """Why a provider that ONNX Runtime left out did not start; None where the loader has nothing against its library."""
    if not pathlib.Path(library).is_file() or (said := load_error(library)) is None:
        return None
    lacking = [name for name in linked_with(library) if name != DRIVER and load_error(name) is not None]
    return missing(ort, lacking) if lacking else why_failed(ort, said) or said


def linked_with(library):
    """The names of the libraries that a shared library (ELF, 64 bits, little-endian) is linked with."""
    with pathlib.Path(library).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start, (size, count) = struct.unpack_from("<Q", content, 0x20)[0], struct.unpack_from("<HH", content, 0x36)
        parts = [struct.unpack_from("<I4xQQ8xQ", content, start + size * index) for index in range(count)]
        entries = [
            struct.unpack_from("<qQ", content, at)
            for kind, offset, _, length in parts
            if kind == PT_DYNAMIC
            for at in range(offset, offset + length, 16)
        ]
        where = next(value for tag, value in entries if tag == DT_STRTAB)
        texts = next(offset + where - at for kind, offset, at, n in parts if kind == PT_LOAD and at <= where < at + n)
        needed = [texts + value for tag, value in entries if tag == DT_NEEDED]
        return [content[at : content.find(b"\0", at)].decode() for at in needed]


def tensorrt_version(library):
    """The major version of TensorRT that a provider's library is linked with; None where there is no such library."""
    if library is None or not pathlib.Path(library).is_file():
        return None
    found = (re.fullmatch(r"libnvinfer\.so\.(\d+)", name) for name in linked_with(library))
    return next((int(version[1]) for version in found if version), None)


def tensorrt_flag(precision, version, is_typed):
    """The provider's flag for a precision; None where it needs none. `is_typed`: the file has that precision in its own types.

    Raises ValueError where this version of TensorRT would ignore the flag and compute in FP32.
    """
    flag = TENSORRT_FLAGS.get(precision)
    if flag is None or version is None or version < UNTYPED_TENSORRT:
        return flag
    if not is_typed:
        raise ValueError(
            f"TensorRT {version} has no flag for precision_mode {precision} and would compute in FP32: leave precision_mode "
            "out, and give it a file that has this precision in its own types"
        )
    return None


def why_failed(ort, said):
    """What an error of ONNX Runtime's means where it is about the machine, and what to do; None where it is about something else."""
    cuda = cuda_of(ort)
    if OLD_DRIVER.search(said):
        least = LEAST_DRIVER.get(cuda)
        wanted = f": install {least} or newer" if least else ": install a newer one"
        return f"the NVIDIA driver{driver_version()} is too old for CUDA {cuda or 'of this build'}{wanted}"
    if NO_CARD.search(said):
        return f"the NVIDIA driver{driver_version()} shows no card: {SHOW_CARD}, and see whether CUDA_VISIBLE_DEVICES hides it"
    if "cuDNN is not available" in said:
        return "the model has a node that needs cuDNN: " + missing(ort, [CUDNN])
    if "cuFFT is not available" in said:
        return "the model has a node that needs cuFFT: " + missing(ort, [CUFFT.get(cuda, "libcufft.so")])
    return None


def missing(ort, names):
    """Says which libraries are missing and how to get them."""
    cuda, site = cuda_of(ort), pathlib.Path(ort.__file__).parents[1]
    verb = "is" if len(names) == 1 else "are"
    text = f"{', '.join(names)} {verb} missing, which ONNX Runtime {ort.__version__}"
    text += f" for CUDA {cuda} needs" if cuda else " needs"
    ways = []
    if wheels := sorted({wheel for name in names if (wheel := wheel_of(name, cuda))}):
        python = site.parents[2] / "bin" / "python3"
        into = f"pip --python {python} install" if python.exists() else f"pip install --target {site}"
        ways.append(f"install the wheels ({into} --no-deps {' '.join(wheels)})")
        ways.append(f"name the folder of an installed CUDA{f' {cuda}' if cuda else ''} in LD_LIBRARY_PATH")
    if any(name.startswith(("libnvinfer", "libnvonnxparser")) for name in names):
        ways.append("for TensorRT use NVIDIA's container of Triton, which has it, or leave the tensorrt block out")
    return f"{text}: {'; or '.join(ways)}" if ways else text


def wheel_of(name, cuda):
    """As pip takes it: the version of a library's interface is the wheel's major version. None where CUDA's wheels lack it."""
    stem, _, version = name.partition(".so.")
    wheel = WHEELS.get(stem)
    if wheel is None:
        return None
    if cuda and (cuda < 13 or stem == "libcudnn"):
        wheel += f"-cu{cuda}"
    return f"'{wheel}=={version}.*'" if version else wheel


def cuda_of(ort):
    """The major version of CUDA that this build is for; None where it does not say."""
    found = re.match(r"\d+", getattr(ort, "cuda_version", None) or "")
    return int(found[0]) if found else None


def driver_version():
    """The installed driver's, with a space before it; empty where nothing tells it."""
    try:
        found = re.search(r"Kernel Module\D*(\d[\d.]*)", DRIVER_FACTS.read_text())
    except OSError:
        return ""
    return f" {found[1]}" if found else ""
