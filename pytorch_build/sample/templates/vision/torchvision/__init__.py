# Keeps the contract of torchvision/__init__.py: torch comes first, then the extension.
from torchvision import ops
from torchvision.version import __version__, git_version
