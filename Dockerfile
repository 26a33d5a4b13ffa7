# The image of every pod of the chart, and of any Ray node:
#
#   docker build -t paceline:0.1.0 .                              GPUs
#   docker build -t paceline:0.1.0-cpu --build-arg VARIANT=cpu .  CPUs
#
# It installs what `make install` installs, from the same pins.
ARG PYTHON=3.12.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG VARIANT=gpu
# Where pip finds PyTorch's CPU build; the GPU build comes from PyPI.
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends make gcc g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/paceline
COPY Makefile pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY configs configs
COPY kvstore kvstore
COPY router router
COPY replicas replicas
COPY cluster cluster
RUN if [ "$VARIANT" = cpu ]; then \
        PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 PIP_EXTRA_INDEX_URL="${TORCH_CPU_INDEX:-}" \
            make install PINS=requirements/cpu.txt; \
    else \
        python -m venv .venv \
        && .venv/bin/pip install --no-cache-dir -r requirements/gpu.txt \
        && .venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation -e .; \
    fi

FROM python:${PYTHON}
# wget for KubeRay's probes, a compiler for the kernels that PyTorch and Triton make when they start.
RUN apt-get update \
    && apt-get install -y --no-install-recommends wget gcc g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home paceline
COPY --from=build /opt/paceline /opt/paceline
ENV PATH=/opt/paceline/.venv/bin:$PATH
# A login shell, which KubeRay can be told to use, forgets PATH.
RUN ln -s /opt/paceline/.venv/bin/ray /opt/paceline/.venv/bin/serve \
    /opt/paceline/.venv/bin/paceline /usr/local/bin/
USER 1000
WORKDIR /home/paceline
CMD ["paceline", "--help"]
