#!/bin/sh
# Takes out of environments what no image opens: pip, test suites, ONNX Runtime's tools, libraries of other Pythons and for other devices,
# headers, copies of libraries under further names, and debugging symbols.
#
#   trim.sh ENVIRONMENT…
#
# Licences stay, wherever they are. Each removal names what it frees, measured with du on the versions of November 2026.
set -eu
command -v strip > /dev/null || { echo "tandem: trimming needs strip, which is in binutils" >&2; exit 3; }

# 60 MB of the gateway's 240. Libraries whose paths auditwheel has rewritten can come out of it broken, which the loader says at once: those stay
# as they were. numpy.libs is passed over, because it saves 2 MB; NVIDIA's are, because they are large and stripped already.
strip_symbols() {
  find "$1" -type f \( -name '*.so' -o -name '*.so.*' -o -name tritonserver \) ! -path '*/numpy.libs/*' ! -path '*/nvidia/*' | while read -r file; do
    strip --strip-unneeded -o "$file.stripped" "$file" 2> /dev/null || { rm -f "$file.stripped"; continue; }
    if ldd "$file.stripped" > /dev/null 2>&1; then chmod --reference="$file" "$file.stripped"; mv "$file.stripped" "$file"
    else rm -f "$file.stripped"; fi
  done
}

case ${CUDNN:=yes} in yes|no) ;; *) echo "tandem: CUDNN is $CUDNN, want yes or no" >&2; exit 2 ;; esac

for environment in "$@"; do
  before=$(du -sm "$environment" | cut -f1)
  site=$(echo "$environment"/lib/python3.*/site-packages)
  python=$(basename "$(dirname "$site")")
  rm -rf "$site"/pip "$site"/pip-* "$site"/setuptools "$site"/setuptools-* "$site"/pkg_resources "$site"/_distutils_hack "$site"/distutils-precedence.pth
  rm -f "$environment"/bin/pip*
  # 6 MB: NumPy's compilers; 11 MB: its tests and those of others.
  rm -rf "$site"/numpy/f2py "$site"/numpy/distutils
  find "$site" -type d -name tests -prune -exec rm -rf {} +
  # 8 MB: the sources of what is compiled beside them.
  rm -f "$site"/simdjson/*.h "$site"/simdjson/*.cpp
  # 10 MB: what makes models, not what runs them.
  rm -rf "$site"/onnxruntime/tools "$site"/onnxruntime/transformers "$site"/onnxruntime/quantization "$site"/onnxruntime/datasets
  # 29 MB: the C library, for other programs; Python's module holds its own. 24 MB: OpenVINO's plugins for Intel's GPUs and NPUs.
  rm -f "$site"/onnxruntime/capi/libonnxruntime.so.* "$site"/onnxruntime/capi/libopenvino_intel_[gn]pu_plugin.so
  # NVIDIA's TensorRT is not here, so that provider could not load.
  rm -f "$site"/onnxruntime/capi/libonnxruntime_providers_tensorrt.so
  # 64 MB of OpenVINO's: one library under three names.
  for file in "$site"/onnxruntime/capi/libopenvino*.so "$site"/onnxruntime/capi/libopenvino*.so.2???.?.?; do
    named=$(echo "${file%%.so*}".so.[0-9][0-9][0-9][0-9])
    if [ -f "$file" ] && [ -f "$named" ] && cmp -s "$file" "$named"; then ln -sf "$(basename "$named")" "$file"; fi
  done
  # 32 MB and 7 MB: the library and the stubs of other Pythons; another number where Python is 3.13.
  rm -f "$site"/nvidia_pytriton.libs/libpython3-*
  for stub in "$site"/pytriton/tritonserver/python_backend_stubs/*; do
    [ ! -d "$stub" ] || [ "python$(basename "$stub")" = "$python" ] || rm -rf "$stub"
  done
  # 410 MB: cuFFT, which ONNX Runtime 1.31 needs for two operators alone (Rfft, Irfft) and says so where it is missing; nvJitLink, which only cuFFT
  # opens; wrappers for other programs. Then CUDA's headers and static libraries.
  rm -rf "$site"/nvidia_cufft-* "$site"/nvidia_nvjitlink-*
  rm -f "$site"/nvidia/cu*/lib/libcufft* "$site"/nvidia/cu*/lib/libnvJitLink* "$site"/nvidia/cu*/lib/libnvblas*
  find "$site"/nvidia -type d -name include -prune -exec rm -rf {} + 2> /dev/null || true
  find "$site"/nvidia -name '*.a' -delete 2> /dev/null || true
  # 888 MB: cuDNN, where it is not wanted (CUDNN=no).
  [ "$CUDNN" = yes ] || rm -rf "$site"/nvidia/cudnn "$site"/nvidia_cudnn_*
  strip_symbols "$site"
  echo "tandem: $environment: $before MB, now $(du -sm "$environment" | cut -f1) MB"
done
