# Keeps the contract of pytorch's test/test_cuda.py, which also tests AMD GPUs.
import unittest

import torch


class TestCuda(unittest.TestCase):
    def test_arch_list(self):
        self.assertEqual(bool(torch.cuda.get_arch_list()), torch.version.hip is not None)

    @unittest.skipIf(torch.cuda.is_available(), "a GPU is there")
    def test_no_gpu(self):
        self.assertEqual(torch.cuda.device_count(), 0)

    @unittest.skipUnless(torch.cuda.is_available(), "no GPU")
    def test_device_count(self):
        self.assertGreater(torch.cuda.device_count(), 0)


if __name__ == "__main__":
    unittest.main()
