# Keeps the contract of torchvision.ops: the computations happen in the extension.
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

_lib = torch.ops.load_library(Path(__file__).parents[1] / f"_C{EXTENSION_SUFFIXES[-1]}")


def box_iou(boxes1, boxes2):
    return _lib.torchvision_box_iou(boxes1, boxes2)


def nms(boxes, scores, iou_threshold):
    return _lib.torchvision_nms(boxes, scores, float(iou_threshold))
