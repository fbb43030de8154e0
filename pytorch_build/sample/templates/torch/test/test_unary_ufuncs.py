# Keeps the contract of pytorch's test/test_unary_ufuncs.py.
import unittest

import torch


class TestUnaryUfuncs(unittest.TestCase):
    def test_abs(self):
        self.assertEqual(torch.abs(torch.tensor([-2, 3])).tolist(), [2, 3])

    def test_sqrt(self):
        self.assertEqual(torch.sqrt(torch.tensor([4, 9])).tolist(), [2, 3])

    def test_exp(self):
        self.assertEqual(torch.exp(torch.zeros(2)).tolist(), [1, 1])

    def test_neg(self):
        self.assertEqual(torch.neg(torch.tensor([1, -1])).tolist(), [-1, 1])


if __name__ == "__main__":
    unittest.main()
