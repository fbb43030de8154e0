# Keeps the contract of torchaudio/__init__.py: torch comes first, then the extension.
from torchaudio import functional
from torchaudio.version import __version__, git_version
