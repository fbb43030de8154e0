# Keeps the contract of pytorch's test/test_autograd.py.
import unittest

import torch


class TestAutograd(unittest.TestCase):
    def test_square(self):
        slope = torch.autograd.derivative(lambda x: x * x, torch.tensor([1, 3]))
        self.assertTrue(torch.allclose(slope, torch.tensor([2, 6])))


if __name__ == "__main__":
    unittest.main()
