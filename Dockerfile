# Tandem's images. Build them with `make image` or, one alone:
#
#   docker build --target gateway -t tandem-gateway:0.1.0 .
#
# gateway, triton-cpu, triton-cpu-openvino, triton-gpu, loadtest. Each runs one process as user 1000 and needs no writable root but /tmp. What
# pip needs to know of your network (index, CA, proxy) it reads from a secret that stays out of the image:
# --secret id=pip,src=$HOME/.config/pip/pip.conf. docs/images.md says more.
#
# Not distroless: Triton's stubs start through bash, and the chart copies models with cp.

# Debian 12 with Python 3.11 under /usr/local/bin. The tag is rebuilt with Debian's security updates; for the same bytes every time give the
# digest that your registry names: --build-arg PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

# -- build: the wheel, and the environments that the images take over; pip stays here ------------------------------------------
FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# strip, for what wheels carry of debugging symbols. What the base itself has of Debian is noted before, for the SBOM.
# hadolint ignore=DL3008
RUN cp /var/lib/dpkg/status /opt/base-packages \
 && if ! command -v strip; then \
      apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*; \
    fi
COPY constraints.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv /opt/build \
 && /opt/build/bin/pip install --constraint constraints.txt hatchling "cyclonedx-python-lib[json-validation]" \
 && python -m venv --without-pip /opt/venv
COPY scripts/images/*.txt scripts/images/
ARG VERSION=0.1.0

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY serving serving
COPY loadtest loadtest
COPY model_repo model_repo
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# What decides about requests, compiled for the environment of the gateway. Where there is no compiler and none can be had, or it fails, the folder
# stays empty and the sources run. Neither the compiler nor this stage is in any image.
FROM build AS compiled
# hadolint ignore=DL3008
RUN mkdir /opt/compiled \
 && if ! command -v cc || [ ! -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then \
      { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev libpython3-dev && rm -rf /var/lib/apt/lists/*; } \
      || echo "tandem: no C compiler: the gateway decides in Python"; \
    fi
COPY scripts/compile.py scripts/
COPY serving serving
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/build/bin/python scripts/compile.py --prefix /opt/compiled \
 || { rm -rf /opt/compiled && mkdir /opt/compiled; }

# Of what Tandem depends on only what the gateway imports: a client of model hubs that one of those asks for stays out.
FROM build AS gateway-environment
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt --no-deps --requirement scripts/images/gateway.txt
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --no-deps --no-index /wheels/*.whl
COPY --from=compiled /opt/compiled/ /opt/venv/
COPY scripts/images scripts/images
RUN scripts/images/trim.sh /opt/venv \
 && /opt/build/bin/python scripts/images/inventory.py --image tandem-gateway --version "$VERSION" --out /out --packages /opt/base-packages \
      --site /opt/venv/lib/python3.*/site-packages /opt/venv/lib/tandem-compiled/*

FROM build AS loadtest-environment
COPY --from=wheel /wheels /wheels
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    for wheel in /wheels/*.whl; do \
      /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt "${wheel}[loadtest]"; \
    done
COPY scripts/images scripts/images
RUN scripts/images/trim.sh /opt/venv \
 && /opt/build/bin/python scripts/images/inventory.py --image tandem-loadtest --version "$VERSION" --out /out --packages /opt/base-packages \
      --site /opt/venv/lib/python3.*/site-packages

# Of what Tandem depends on only what `tandem triton` imports; NumPy comes from the environment of Triton, by triton.pth.
FROM build AS triton-runtime
ENV TANDEM_CACHE=/opt/tandem
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt --no-deps --requirement scripts/images/triton.txt \
 && mkdir /opt/speeds
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/venv/bin/python install --no-deps --no-index /wheels/*.whl

FROM triton-runtime AS triton-cpu-environment
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/venv/bin/tandem environment cpu \
 && rm /opt/tandem/environments/*.lock /opt/tandem/environments/*.log
COPY scripts/images scripts/images
RUN scripts/images/trim.sh /opt/venv /opt/tandem/environments/cpu-* \
 && echo /opt/tandem/environments/cpu-*/lib/python3.*/site-packages > "$(echo /opt/venv/lib/python3.*/site-packages)/triton.pth" \
 && /opt/build/bin/python scripts/images/inventory.py --image tandem-triton-cpu --version "$VERSION" --out /out --packages /opt/base-packages \
      --site /opt/venv/lib/python3.*/site-packages /opt/tandem/environments/*/lib/python3.*/site-packages

FROM triton-cpu-environment AS triton-cpu-openvino-environment
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/venv/bin/tandem environment openvino \
 && rm /opt/tandem/environments/*.lock /opt/tandem/environments/*.log
RUN scripts/images/trim.sh /opt/tandem/environments/openvino-* \
 && scripts/images/share_numpy.sh /opt/tandem/environments/cpu-* /opt/tandem/environments/openvino-* \
 && /opt/build/bin/python scripts/images/inventory.py --image tandem-triton-cpu-openvino --version "$VERSION" --out /out --packages /opt/base-packages \
      --site /opt/venv/lib/python3.*/site-packages /opt/tandem/environments/*/lib/python3.*/site-packages

# CUDNN=no leaves cuDNN out (888 MB): ONNX Runtime opens it for the nodes that need it, and a model with
# such a node is then refused by its reason.
FROM triton-runtime AS triton-gpu-environment
ARG CUDNN=yes
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/venv/bin/tandem environment gpu \
 && rm /opt/tandem/environments/*.lock /opt/tandem/environments/*.log
# Asked for the card where the driver's files are not shown to the container.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/build/bin/pip --python /opt/venv/bin/python install --constraint constraints.txt --no-deps nvidia-ml-py
COPY scripts/images scripts/images
RUN scripts/images/trim.sh /opt/venv /opt/tandem/environments/gpu-* \
 && echo /opt/tandem/environments/gpu-*/lib/python3.*/site-packages > "$(echo /opt/venv/lib/python3.*/site-packages)/triton.pth" \
 && /opt/build/bin/python scripts/images/resolve.py /opt/tandem/environments/gpu-* \
 && /opt/build/bin/python scripts/images/inventory.py --image tandem-triton-gpu --version "$VERSION" --out /out --packages /opt/base-packages \
      --site /opt/venv/lib/python3.*/site-packages /opt/tandem/environments/*/lib/python3.*/site-packages

# -- base: what every image has ------------------------------------------------------------------------------------------------
# /opt/tandem is made here, as root's: made by the COPY of a user's folder it would be the user's too, who could then replace what lies in it.
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 1000 tandem \
 && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin tandem \
 && mkdir /opt/tandem
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
ARG VERSION=0.1.0
LABEL org.opencontainers.image.vendor="The Tandem authors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY LICENSE /usr/share/doc/tandem/LICENSE
WORKDIR /tmp

# -- gateway: what clients talk to; no torch, no ONNX Runtime, no Triton. Also carries the digits models for a first install -----
FROM base AS gateway
LABEL org.opencontainers.image.title="tandem-gateway" \
      org.opencontainers.image.description="The gateway of Tandem, and the digits models"
COPY --from=gateway-environment /out/usr /usr
COPY --from=gateway-environment /opt/venv /opt/venv
COPY --from=wheel /src/model_repo /opt/tandem/model_repo
USER 1000:1000
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health/live', timeout=3)"]
ENTRYPOINT ["tandem"]
# Refuses to start without a file of API keys; docs/keys.md says how one is made.
CMD ["gateway", "--config=/etc/tandem/tandem.yaml", "--keys=/etc/tandem/keys.json", "--model-repository=/opt/tandem/model_repo", "--host=0.0.0.0", "--port=8080"]

# -- triton: what the three images of Triton have in common; `tandem triton` is PID 1 ------------------------------------------------
FROM base AS triton
# ONNX Runtime 1.31 sends usage data to its maker unless told otherwise.
ENV TANDEM_CACHE=/opt/tandem ORT_DISABLE_TELEMETRY=1
COPY --from=triton-runtime --chown=1000:1000 /opt/speeds /opt/tandem/speeds
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/v2/health/live', timeout=3)"]
ENTRYPOINT ["tandem"]

FROM triton AS triton-cpu
LABEL org.opencontainers.image.title="tandem-triton-cpu" \
      org.opencontainers.image.description="Triton with ONNX Runtime on the CPU, kept up by tandem triton"
COPY --from=triton-cpu-environment /out/usr /usr
COPY --from=triton-cpu-environment /opt/venv /opt/venv
COPY --from=triton-cpu-environment /opt/tandem/environments /opt/tandem/environments
CMD ["triton", "--pool=cpu", "--model-repository=/models", "--host=0.0.0.0"]

FROM triton AS triton-cpu-openvino
LABEL org.opencontainers.image.title="tandem-triton-cpu-openvino" \
      org.opencontainers.image.description="Triton with ONNX Runtime and OpenVINO on the CPU, kept up by tandem triton"
COPY --from=triton-cpu-openvino-environment /out/usr /usr
COPY --from=triton-cpu-openvino-environment /opt/venv /opt/venv
COPY --from=triton-cpu-openvino-environment /opt/tandem/environments /opt/tandem/environments
CMD ["triton", "--pool=cpu", "--model-repository=/models", "--host=0.0.0.0"]

# What NVIDIA's runtime puts in of the driver. Which cards, it is told by whoever starts the container: with a default of `all` a pod that asked for
# none would get every card of a node whose runtime is NVIDIA's.
FROM triton AS triton-gpu
LABEL org.opencontainers.image.title="tandem-triton-gpu" \
      org.opencontainers.image.description="Triton with ONNX Runtime on CUDA, kept up by tandem triton"
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=triton-gpu-environment /out/usr /usr
COPY --from=triton-gpu-environment /opt/venv /opt/venv
COPY --from=triton-gpu-environment /opt/tandem/environments /opt/tandem/environments
CMD ["triton", "--pool=gpu", "--model-repository=/models", "--host=0.0.0.0"]

# -- loadtest: Locust and campaigns. No server, so nothing to ask for its health --------------------------------------------------
FROM base AS loadtest
LABEL org.opencontainers.image.title="tandem-loadtest" \
      org.opencontainers.image.description="Load tests of Tandem: campaigns, and Locust's master and workers"
COPY --from=loadtest-environment /out/usr /usr
COPY --from=loadtest-environment /opt/venv /opt/venv
USER 1000:1000
EXPOSE 5557 8089
HEALTHCHECK NONE
ENTRYPOINT ["tandem"]
CMD ["campaign", "--help"]
