# Keeps the contract of pytorch's test/test_torch.py: unittest classes, run by pytest from the source tree.
import unittest

import torch


class TestTorch(unittest.TestCase):
    def test_mm(self):
        product = torch.mm(torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [7, 8]]))
        self.assertEqual(product.tolist(), [[19, 22], [43, 50]])

    def test_mm_refuses_shapes(self):
        with self.assertRaisesRegex(RuntimeError, "mm: shapes"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    def test_t(self):
        self.assertEqual(torch.tensor([[1, 2, 3]]).t().tolist(), [[1], [2], [3]])

    def test_sum(self):
        self.assertEqual(torch.arange(5).sum().item(), 10)

    def test_config(self):
        self.assertIn("BLAS_INFO=", torch.__config__.show())


if __name__ == "__main__":
    unittest.main()
