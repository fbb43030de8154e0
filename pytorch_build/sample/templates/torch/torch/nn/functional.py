# Keeps the contract of pytorch's torch.nn.functional, as far as the sample computes.


def linear(x, weight):
    return x @ weight.t()


def relu(x):
    return x._unary(b"r")
