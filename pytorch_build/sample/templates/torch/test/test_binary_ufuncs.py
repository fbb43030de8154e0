# Keeps the contract of pytorch's test/test_binary_ufuncs.py.
import unittest

import torch


class TestBinaryUfuncs(unittest.TestCase):
    def test_add(self):
        self.assertEqual((torch.ones(2) + torch.arange(2)).tolist(), [1, 2])

    def test_scalar(self):
        self.assertEqual((2 * torch.ones(2, 1) - 1).tolist(), [[1], [1]])

    def test_div(self):
        self.assertEqual((torch.tensor([1, 3]) / 2).tolist(), [0.5, 1.5])

    def test_shapes(self):
        with self.assertRaisesRegex(RuntimeError, "different shapes"):
            torch.ones(2) + torch.ones(3)


if __name__ == "__main__":
    unittest.main()
