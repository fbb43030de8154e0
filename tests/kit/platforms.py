"""The platforms that wheels are built on, by name."""

from pytorch_build.platforms import PLATFORMS

LINUX = PLATFORMS["linux"]
WINDOWS = PLATFORMS["windows"]
