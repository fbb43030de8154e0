# Keeps the contract of torchaudio.functional: the computations happen in the extension.
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

_lib = torch.ops.load_library(Path(__file__).parents[1] / "lib" / f"_torchaudio{EXTENSION_SUFFIXES[-1]}")


def amplitude_to_DB(x, multiplier, amin, db_multiplier):
    return _lib.torchaudio_amplitude_to_db(x, float(multiplier), float(amin), float(db_multiplier))


def resample(waveform, orig_freq, new_freq):
    return _lib.torchaudio_resample(waveform, int(orig_freq), int(new_freq))
