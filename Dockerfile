# Tandem's images. Build them with `make image` or, one alone:
#
#   docker build --target gateway    -t tandem-gateway:0.1.0 .
#   docker build --target triton-cpu -t tandem-triton-cpu:0.1.0 .
#
# Each runs one process as user 1000 and needs no writable root but /tmp. What pip needs to know of your network (index, CA, proxy) it
# reads from a secret that stays out of the image: --secret id=pip,src=$HOME/.config/pip/pip.conf. docs/images.md says more.
#
# Not distroless: Triton's stubs start through bash, and the chart copies models with cp.

ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

# -- build: the wheel, and the environments that the images take over; pip stays here ------------------------------------------
FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY serving serving
COPY loadtest loadtest
COPY model_repo model_repo
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv /opt/build \
 && /opt/build/bin/pip wheel --no-deps --wheel-dir /wheels .

FROM build AS gateway-environment
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv --without-pip /opt/venv \
 && /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt /wheels/*.whl

FROM build AS triton-environment
ENV TANDEM_CACHE=/opt/tandem
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv --without-pip /opt/venv \
 && for wheel in /wheels/*.whl; do \
      /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt "${wheel}[local]"; \
    done \
 && /opt/venv/bin/tandem environment cpu
# What serving never opens: pip, stubs and libraries of other Pythons, test suites, ONNX Runtime's tools. About 95 MB.
RUN site=$(echo /opt/tandem/environments/cpu-*/lib/python3.11/site-packages) \
 && rm -rf "$site"/{pip,setuptools,pkg_resources}* "$site"/numpy/{f2py,distutils} \
      "$site"/onnxruntime/{tools,transformers,quantization,datasets} "$site"/nvidia_pytriton.libs/libpython3-*.13.so* \
 && find "$site"/pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name 3.11 -exec rm -rf {} + \
 && find "$site" -type d -name tests -prune -exec rm -rf {} + \
 && rm -f /opt/tandem/environments/*.lock /opt/tandem/environments/*.log \
 && mkdir /opt/speeds

# -- base: what every image has ------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 1000 tandem \
 && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tandem
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
ARG VERSION=0.1.0
LABEL org.opencontainers.image.vendor="The Tandem authors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
WORKDIR /tmp

# -- gateway: what clients talk to; no torch, no ONNX Runtime, no Triton. Also carries the digits models for a first install -----
FROM base AS gateway
LABEL org.opencontainers.image.title="tandem-gateway" \
      org.opencontainers.image.description="The gateway of Tandem, and the digits models"
COPY --from=gateway-environment /opt/venv /opt/venv
COPY --from=build /src/model_repo /opt/tandem/model_repo
USER 1000:1000
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/live', timeout=3)"]
ENTRYPOINT ["tandem"]
# There are no API keys yet, so this refuses to start until --insecure-no-auth is added.
CMD ["gateway", "--config=/etc/tandem/tandem.yaml", "--host=0.0.0.0", "--port=8080"]

# -- triton-cpu: Triton and its ONNX Runtime backend for CPU pools; `tandem triton` is PID 1 --------------------------------------
FROM base AS triton-cpu
LABEL org.opencontainers.image.title="tandem-triton-cpu" \
      org.opencontainers.image.description="Triton with ONNX Runtime on the CPU, kept up by tandem triton"
COPY --from=triton-environment /opt/venv /opt/venv
COPY --from=triton-environment /opt/tandem /opt/tandem
COPY --from=triton-environment --chown=1000:1000 /opt/speeds /opt/tandem/speeds
# ONNX Runtime 1.31 sends usage data to its maker unless told otherwise.
ENV TANDEM_CACHE=/opt/tandem ORT_DISABLE_TELEMETRY=1
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=3)"]
ENTRYPOINT ["tandem"]
CMD ["triton", "--pool=cpu", "--model-repository=/models", "--host=0.0.0.0"]
