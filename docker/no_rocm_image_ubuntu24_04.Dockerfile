# Tests wheels on GPUs: what a user's machine has without ROCm, so that all of ROCm comes from the wheels.
#
# Devices and groups are whoever's runs it: --device /dev/kfd --device /dev/dri --group-add video.
ARG UBUNTU_VERSION=24.04
ARG BASE_IMAGE=docker.io/library/ubuntu:${UBUNTU_VERSION}
# hadolint ignore=DL3006
FROM ${BASE_IMAGE}

COPY docker/common/install_base.sh /opt/ci/
RUN bash /opt/ci/install_base.sh \
    && if [ -e /opt/rocm ]; then echo "this base has a ROCm of its own" >&2; exit 1; fi
WORKDIR /workspace
CMD ["bash", "--login"]
